# shellcheck shell=bash
# Builds our programs, always in the same way: cargo would build them anew for another selection of
# crates. Sourced by `images/build`, `images/quickstart` and `tests/run`.

# build_programs ROOT: builds what is in ROOT and sets PROGRAMS to the directory they are in.
build_programs() {
    local built
    command -v cargo >/dev/null || fail "no cargo: install a Rust toolchain (rustup) first"
    # Cargo says itself where it put them: that depends on its configuration.
    built=$(
        cd "$1" && cargo build --release --locked --workspace --exclude sandbox-egress-tests \
            --bins --message-format json-render-diagnostics |
            sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
    ) || fail "the programs did not build: the reason is above"
    # shellcheck disable=SC2034 # read by whoever sources this
    PROGRAMS=$(dirname "${built%%$'\n'*}")
}
