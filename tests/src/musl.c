/* Asks the C library that it is linked to: who runs it, and where each of its arguments is. */
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static int fetch(const char *host) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *place;
    int error = getaddrinfo(host, "80", &hints, &place);
    if (error) {
        fprintf(stderr, "%s: %s\n", host, gai_strerror(error));
        return 1;
    }
    char answer[4096];
    for (; place; place = place->ai_next) {
        int stream = socket(place->ai_family, SOCK_STREAM, 0);
        if (connect(stream, place->ai_addr, place->ai_addrlen)) continue;
        dprintf(stream, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", host);
        for (ssize_t length; (length = read(stream, answer, sizeof answer)) > 0;)
            fwrite(answer, 1, length, stdout);
        return 0;
    }
    perror(host);
    return 1;
}

int main(int count, char **arguments) {
    struct passwd *user = getpwuid(getuid());
    int failed = 0;
    if (user) printf("%s at %s\n", user->pw_name, user->pw_dir);
    for (int n = 1; n < count; n++) failed += fetch(arguments[n]);
    return failed;
}
