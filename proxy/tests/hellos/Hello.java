import javax.net.ssl.SSLSocketFactory;

/** Says hello as Java's own TLS does. */
class Hello {
    public static void main(String[] arguments) throws Exception {
        try (var socket = SSLSocketFactory.getDefault().createSocket(arguments[0], 443)) {
            ((javax.net.ssl.SSLSocket) socket).startHandshake();
        }
    }
}
