# First process of a node: enters its own namespaces and control groups, mounts the node's own
# directories there, and stays. When it ends, all processes and mounts of the node end.
set -euo pipefail
directory=$1 group=$2

if [ $# -eq 2 ]; then
  for own in /sys/fs/cgroup/*/"$group"; do
    echo $$ >"$own/cgroup.procs"
  done
  exec unshare --pid --fork --kill-child --mount --mount-proc --cgroup bash "$0" "$@" inside
fi

mount --make-rshared /
# After it is mounted again, a hierarchy begins at the group of the node.
for hierarchy in /sys/fs/cgroup/*; do
  [ -f "$hierarchy/cgroup.procs" ] || continue
  read -r kind options < <(findmnt --noheadings --first-only --output FSTYPE,FS-OPTIONS "$hierarchy")
  umount "$hierarchy"
  if [ "$kind" = cgroup2 ]; then
    mount -t cgroup2 cgroup2 "$hierarchy"
  else
    mount -t cgroup -o "${options#rw,}" cgroup "$hierarchy"
  fi
done
for place in lib log; do
  mkdir -p "$directory/$place"
  mount --bind "$directory/$place" "/var/$place"
done
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/netns /var/log/pods /var/log/containers /var/lib/kubelet
echo "the node is there"
sleep infinity &
# Also reaps processes whose parents have ended.
while :; do wait; done
