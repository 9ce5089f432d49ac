#!/bin/bash
# The .deb holds what it should, and, where this machine lets root mount an overlay, installs with dpkg into a copy of
# this machine: the user is made, the config is good once it has a certificate, a key is made by the service's user, and
# what the unit starts answers over TLS. Nothing outside a temporary folder is touched.
#
#   tests/package/check.sh target/dist/weir_0.1.0-1_amd64.deb

set -euo pipefail
deb=$(realpath "$1")
work=$(mktemp -d)
weir=
cleanup() {
  [ -z "$weir" ] || { kill -9 "$weir" && wait "$weir"; } 2>/dev/null || true
  mountpoint -q "$work/root" && umount -R "$work/root"
  mountpoint -q "$work/disk" && umount "$work/disk"
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "package: $*" >&2; exit 1; }

dpkg-deb -x "$deb" "$work/files"
for file in usr/bin/weir lib/systemd/system/weir.service etc/weir/weir.yaml etc/weir/weir.env usr/lib/sysusers.d/weir.conf \
  usr/share/doc/weir/weir.yaml usr/share/doc/weir/weir-sysctl.conf usr/share/man/man1/weir.1.gz \
  usr/share/bash-completion/completions/weir usr/share/zsh/vendor-completions/_weir; do
  [ -f "$work/files/$file" ] || fail "$file is not in it"
done
[ "$(stat -c %a "$work/files/etc/weir/weir.env")" = 600 ] || fail "weir.env is readable for others"
dpkg-deb -I "$deb" conffiles | grep -qx /etc/weir/weir.yaml || fail "weir.yaml would be overwritten by an upgrade"
"$work/files/usr/bin/weir" --version

mkdir -p "$work"/{disk,root}
if ! { mount -t tmpfs tmpfs "$work/disk" && mkdir "$work/disk/upper" "$work/disk/work" &&
  mount -t overlay overlay -o "lowerdir=/,upperdir=$work/disk/upper,workdir=$work/disk/work" "$work/root"; } 2>"$work/why"; then
  echo "package: LEFT OUT, no overlay here, so it was not installed: $(tail -1 "$work/why")"
  exit 0
fi
mount --bind /dev "$work/root/dev"
mount -t proc proc "$work/root/proc" 2>/dev/null || mount --bind /proc "$work/root/proc"
mkdir -p "$work/root/tmp" && cp "$deb" "$work/root/tmp/weir.deb"
in_root() { chroot "$work/root" "$@"; }

in_root dpkg -i --force-depends /tmp/weir.deb
in_root getent passwd weir >/dev/null || fail "there is no user weir"
[ "$(in_root stat -c '%U %a' /var/lib/weir)" = "weir 750" ] || fail "/var/lib/weir is not weir's"
in_root weir check /etc/weir/weir.yaml && fail "the config is good without its certificate"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout "$work/tls.key" -out "$work/tls.crt" 2>/dev/null
for name in tls.crt tls.key; do
  cp "$work/$name" "$work/root/tmp/" && in_root install -g weir -m 640 "/tmp/$name" "/etc/weir/$name"
done
port=$((20000 + RANDOM % 10000))
in_root sed -i "s/0.0.0.0:443/127.0.0.1:$port/; s/127.0.0.1:9090/127.0.0.1:$((port + 1))/" /etc/weir/weir.yaml
in_root weir check /etc/weir/weir.yaml
as_weir() { in_root setpriv --reuid weir --regid weir --clear-groups "$@"; }
key=$(as_weir weir keys create me --models '*' --config /etc/weir/weir.yaml)
[ -n "$key" ] || fail "no key was made"

# What the unit starts, as its user.
start=$(sed -n 's/^ExecStart=//p' "$work/files/lib/systemd/system/weir.service")
chroot "$work/root" setpriv --reuid weir --regid weir --clear-groups $start >"$work/log" 2>&1 &
weir=$!
ask() {
  curl -sSN --cacert "$work/tls.crt" --resolve "localhost:$port:127.0.0.1" "https://localhost:$port/v1/chat/completions" \
    -H "authorization: Bearer $key" -H 'content-type: application/json' \
    -d '{"model":"demo","stream":true,"messages":[{"role":"user","content":"hi"}]}'
}
for _ in $(seq 100); do
  if answer=$(ask 2>/dev/null) && grep -q 'data: \[DONE\]' <<<"$answer"; then
    kill "$weir" && wait "$weir" && weir= && echo "package: installed, started, answered over TLS, stopped" && exit 0
    cat "$work/log" >&2
    fail "it did not stop well"
  fi
  kill -0 "$weir" 2>/dev/null || { cat "$work/log" >&2; fail "it did not start"; }
  sleep 0.1
done
cat "$work/log" >&2
fail "no answer: ${answer:-}"
