# Becomes a guest as an engine would make one: its own mounts and processes, in the network namespace
# that this was started in, with the entrypoint as process 1.
# Usage: guest.sh DIRECTORY COMMAND...   DIRECTORY holds etc/, channel/, bin/ and workspace/.
# CAPABILITIES in the environment replaces those that an engine would leave. LACKS names programs of
# /usr/sbin that the image does not have.
set -eu
# No engine hands on what this process happens to have open.
for descriptor in /proc/self/fd/*; do
    descriptor=${descriptor##*/}
    # 255 is the shell's own, this script, and does not outlive an exec.
    if [[ $descriptor -gt 2 && $descriptor -ne 255 ]]; then
        exec {descriptor}>&-
    fi
done
directory=$1
shift

mount --make-rprivate /
# Everything below /run is the machine's own: its sockets are not for a guest.
for file in passwd group resolv.conf; do
    mount --bind "$directory/etc/$file" "$(readlink -f "/etc/$file")"
done
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -m 0700 /run/sandbox-egress
mkdir /run/sandbox-egress/host
mount --bind "$directory/channel" /run/sandbox-egress/host
mount -o remount,bind,ro /run/sandbox-egress/host
mount -t proc proc /proc
if [[ -n ${LACKS:-} ]]; then
    mkdir -m 0700 /run/lacks
    mkdir /run/lacks/upper /run/lacks/work
    for program in $LACKS; do
        # How an overlay says that something is not there.
        mknod "/run/lacks/upper/$program" c 0 0
    done
    sbin=$(readlink -f /usr/sbin)
    chmod --reference="$sbin" /run/lacks/upper
    mount -t overlay -o "lowerdir=$sbin,upperdir=/run/lacks/upper,workdir=/run/lacks/work" overlay "$sbin"
fi
cd "$directory/workspace"
# What `host-collector run` asks of an engine.
exec setpriv --no-new-privs --inh-caps=-all \
    --bounding-set="-all,${CAPABILITIES:-+net_admin,+setuid,+setgid,+setpcap,+kill}" \
    env -u CAPABILITIES -u LACKS "$directory/bin/sandbox-entrypoint" "$@"
