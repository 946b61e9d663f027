# shellcheck shell=bash
# Servers that tests need: PostgreSQL, private to this run, on a socket in a folder of its own. Source it after lib.sh; what was
# started ends with the script.

POSTGRES_PID=
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

stop_servers() {
    # SIGTERM would mean to wait for its clients.
    if [ -n "$POSTGRES_PID" ]; then
        kill -INT "$POSTGRES_PID" 2>/dev/null || true
        wait "$POSTGRES_PID" 2>/dev/null || true
    fi
    POSTGRES_PID=
    if [ "${#SERVER_FOLDERS[@]}" != 0 ]; then rm -rf "${SERVER_FOLDERS[@]}"; fi
    SERVER_FOLDERS=()
}
AT_EXIT=stop_servers
