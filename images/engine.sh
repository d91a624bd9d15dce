# shellcheck shell=bash
# Finds a container engine, or installs and starts one. Sourced by `images/build`,
# `images/quickstart` and `tests/run`; says what it does and asks nothing.

say() { printf '\n== %s\n' "$*"; }
fail() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

# as_root COMMAND...: the few steps that need root, from an account that may not be it.
as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "'$*' needs root: run this as root, or install sudo"
    fi
}

# install_missing COMMAND:PACKAGE,…  …: installs the packages of each command that is not there.
install_missing() {
    local pair packages missing=()
    for pair in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null && continue
        IFS=, read -ra packages <<<"${pair#*:}"
        missing+=("${packages[@]}")
    done
    [[ ${#missing[@]} -eq 0 ]] && return
    command -v apt-get >/dev/null ||
        fail "missing: ${missing[*]}. Install them: this machine has no apt-get to do it with"
    say "Installing ${missing[*]}"
    if [[ -z ${APT_UPDATED:-} ]]; then
        as_root apt-get -qq update
        APT_UPDATED=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        "${missing[@]}" >/dev/null
}

# Debian 12 has daemon and client in one package, later releases in two.
install_docker() {
    install_missing dockerd:docker.io
    install_missing docker:docker-cli
}

docker_answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
podman_answers() { podman info >/dev/null 2>&1; }

# A daemon that was killed leaves files that name its process, and the next one refuses to start
# because of them, also where that process is gone or another by now.
forget_dead_daemons() {
    local file pid
    for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        if ! grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$pid/status" ||
            ! grep -qsE '^(dockerd|containerd)$' "/proc/$pid/comm"; then
            rm -f "$file"
        fi
    done
}

# start_docker LOG: starts a docker daemon if none answers, and sets DOCKERD_PID to its pid if so.
start_docker() {
    local log=$1 log_lines reader
    DOCKERD_PID=
    docker_answers && return
    [[ $EUID -eq 0 ]] || fail "no docker daemon answers: start it, or add yourself to the group docker"
    say "Starting a docker daemon (log: $log)"
    forget_dead_daemons
    : >"$log"
    setsid dockerd >>"$log" 2>&1 </dev/null &
    DOCKERD_PID=$!
    # Its own word that it listens is the event to wait for; the daemon's end is the other.
    exec {log_lines}< <(exec timeout 120 tail --pid="$DOCKERD_PID" -n +1 -f "$log")
    reader=$!
    if ! grep -q -m1 'API listen on' <&"$log_lines"; then
        tail -n 5 "$log" >&2
        fail "dockerd did not start: the reason is above, the whole of it in $log"
    fi
    kill "$reader" 2>/dev/null || true
    exec {log_lines}<&-
    docker_answers || fail "dockerd started but does not answer: see $log"
}

# choose_engine [NAME]: prints the engine to use: the one asked for, else the first that answers.
choose_engine() {
    case ${1:-} in
    docker) docker_answers || fail "docker does not answer: is its daemon running? ('docker version' says more)" ;;
    podman) podman_answers || fail "podman does not answer ('podman info' says why)" ;;
    '')
        if docker_answers; then set -- docker; elif podman_answers; then set -- podman; else
            fail "no container engine answers: install docker.io or podman, or run images/quickstart, which does"
        fi
        ;;
    *) fail "unknown engine '$1': docker or podman" ;;
    esac
    printf '%s\n' "$1"
}
