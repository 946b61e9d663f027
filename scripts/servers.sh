# shellcheck shell=bash
# Servers that tests need: PostgreSQL, two that speak S3 and a registry of images, each private to this run and on loopback or a socket in a folder of
# its own. Source it after lib.sh; what was started ends with the script.

S3S_FS=0.14.1      # 0.17 needs a later Rust
MOTO=5.2.5
S3_KEY=test
S3_SECRET=test-secret
POSTGRES_PID=
SERVERS=           # pids of the others
SERVER_FOLDERS=()

# Their data is new each time and not worth a disk's wait: `fsync=off` unless it is measured.
need_postgres() {
    postgres_bin >/dev/null || apt postgresql || true
    postgres_bin >/dev/null || die "PostgreSQL's programs are missing; get them with: sudo apt-get install postgresql"
}

# Debian keeps them out of PATH.
postgres_bin() {
    local folder
    for folder in /usr/lib/postgresql/*/bin "$(dirname "$(command -v postgres || echo /-)")"; do
        if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then echo "$folder"; return; fi
    done
    return 1
}

# PostgreSQL refuses to run as root: then the user that its package has made takes its place.
PLAIN_USER=()
if [ "$(id -u)" = 0 ]; then PLAIN_USER=(setpriv --reuid=postgres --regid=postgres --clear-groups); fi

# start_postgres [SETTING=VALUE...]: sets POSTGRES_URL, whose user may make databases.
start_postgres() {
    local bin folder settings=() setting
    bin=$(postgres_bin)
    folder=$(mktemp -d /tmp/sless-pg.XXXXXX)       # short: it holds a socket
    SERVER_FOLDERS+=("$folder")
    # Also for handlers, which are root without its privileges.
    if [ "$(id -u)" = 0 ]; then chown "postgres:$(id -g)" "$folder" && chmod 750 "$folder"; fi
    for setting in "$@"; do settings+=(-c "$setting"); done
    (
        cd "$folder"
        "${PLAIN_USER[@]}" "$bin/initdb" -D data -U sless --auth=trust --encoding=UTF8 --locale=C --no-sync
    ) >"$CACHE/postgres.log" 2>&1 || { tail -5 "$CACHE/postgres.log" >&2; die "initdb"; }
    # The folder is nobody else's, so the socket needs no password.
    "${PLAIN_USER[@]}" "$bin/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= "${settings[@]}" >>"$CACHE/postgres.log" 2>&1 &
    POSTGRES_PID=$!
    POSTGRES_URL="postgres://sless@localhost/postgres?host=$folder"
    local n
    for n in $(seq 300); do
        if [ -S "$folder/.s.PGSQL.5432" ] && "$bin/psql" -qtA -h "$folder" -U sless postgres -c 'SELECT 1' >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    tail -5 "$CACHE/postgres.log" >&2
    die "PostgreSQL does not answer"
}

need_s3s_fs() {
    local tools=$CACHE/tools
    if ! "$tools/bin/s3s-fs" --version 2>/dev/null | grep -qF "$S3S_FS"; then
        stage "install s3s-fs" cargo install --quiet --locked s3s-fs --version "$S3S_FS" --features binary --root "$tools"
    fi
}

need_s3() {
    local venv=$CACHE/moto python
    need_s3s_fs
    if [ "$(cat "$venv/version" 2>/dev/null)" != "$MOTO" ]; then
        python=$(python_with_venv) || die "no Python 3.10 or later with venv; get it with: sudo apt-get install python3-venv"
        rm -rf "$venv"
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "moto[s3,server]==$MOTO"
        echo "$MOTO" >"$venv/version"       # last: a broken install is not taken for a whole one
    fi
}

# Sets S3S_URL and MOTO_URL.
start_s3() {
    local folder port
    folder=$(mktemp -d /tmp/sless-s3.XXXXXX)
    SERVER_FOLDERS+=("$folder")
    port=$(free_port)
    "$CACHE/tools/bin/s3s-fs" --host 127.0.0.1 --port "$port" --access-key "$S3_KEY" --secret-key "$S3_SECRET" "$folder" >"$CACHE/s3s-fs.log" 2>&1 &
    SERVERS="$SERVERS $!"
    S3S_URL=http://127.0.0.1:$port
    port=$(free_port)
    "$CACHE/moto/bin/moto_server" -H 127.0.0.1 -p "$port" >"$CACHE/moto.log" 2>&1 &
    SERVERS="$SERVERS $!"
    MOTO_URL=http://127.0.0.1:$port
    wait_for_http "$S3S_URL"
    wait_for_http "$MOTO_URL"
}

need_registry() {
    need docker-registry docker-registry
    need htpasswd apache2-utils
}

# Sets REGISTRY: HOST:PORT, over HTTP, for the user `test`.
start_registry() {
    local folder port
    folder=$(mktemp -d /tmp/sless-registry.XXXXXX)
    SERVER_FOLDERS+=("$folder")
    port=$(free_port)
    htpasswd -Bbn "$S3_KEY" "$S3_SECRET" >"$folder/htpasswd"
    cat >"$folder/config.yml" <<YAML
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: "$folder/data"}, delete: {enabled: true}}
http: {addr: "127.0.0.1:$port"}
auth: {htpasswd: {realm: test, path: "$folder/htpasswd"}}
YAML
    docker-registry serve "$folder/config.yml" >"$CACHE/registry.log" 2>&1 &
    SERVERS="$SERVERS $!"
    REGISTRY=127.0.0.1:$port
    wait_for_http "http://$REGISTRY"
}

# Any answer will do.
wait_for_http() {
    python3.11 - "$1" <<'PY'
import sys, time, urllib.error, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5)
    except urllib.error.HTTPError:
        pass
    except OSError:
        time.sleep(0.1)
        continue
    sys.exit()
sys.exit(f"error: nothing answers at {sys.argv[1]}")
PY
}

stop_servers() {
    local pid
    # For PostgreSQL SIGTERM would mean to wait for its clients.
    if [ -n "$POSTGRES_PID" ]; then kill -INT "$POSTGRES_PID" 2>/dev/null || true; fi
    for pid in $SERVERS; do kill "$pid" 2>/dev/null || true; done
    for pid in $POSTGRES_PID $SERVERS; do wait "$pid" 2>/dev/null || true; done
    POSTGRES_PID= SERVERS=
    if [ "${#SERVER_FOLDERS[@]}" != 0 ]; then rm -rf "${SERVER_FOLDERS[@]}"; fi
    SERVER_FOLDERS=()
}
AT_EXIT=stop_servers
