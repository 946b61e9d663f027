"""Notes in PostgreSQL: create, read, change, delete, by method and path. DATABASE_URL comes from a secret."""

import logging
import os

import psycopg
from psycopg.rows import dict_row

log = logging.getLogger("notes")
log.setLevel(logging.INFO)

LONGEST = 10_000
TABLE = """CREATE TABLE IF NOT EXISTS notes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    text text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now())"""


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def connect():
    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=dict_row, connect_timeout=5)


def init(context):
    """Runs once per worker: a database that is away makes the function not ready, instead of each call fail."""
    context.state.connection = connect()
    # Workers that start together would trip over each other in CREATE TABLE.
    with context.state.connection.transaction():
        context.state.connection.execute("SELECT pg_advisory_xact_lock(hashtext('notes'))")
        context.state.connection.execute(TABLE)


def ask(context, query, *parameters):
    """The rows. A connection that has broken since the last call is made anew; nothing has been sent on it then."""
    connection = context.state.connection
    if connection.closed or not alive(connection):
        log.info("connecting again")
        connection = context.state.connection = connect()
    return connection.execute(query, parameters).fetchall()


def alive(connection):
    try:
        connection.execute("SELECT 1")
        return True
    except psycopg.OperationalError:
        return False


def note_id(path):
    """The number in the path, None for the list."""
    text = path.strip("/")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise Refused(404, f"there is no note {text!r}")
    return int(text)


def text_of(event):
    text = event.get("text") if isinstance(event, dict) else None
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST or "\0" in text:
        raise Refused(400, f"send a JSON object with a `text` of 1 to {LONGEST} characters")
    return text


def answer(event, context):
    method, number = context.http.method, note_id(context.http.path)
    if number is None:
        if method == "GET":
            return 200, ask(context, "SELECT * FROM notes ORDER BY id DESC LIMIT 100")
        if method == "POST":
            return 201, ask(context, "INSERT INTO notes (text) VALUES (%s) RETURNING *", text_of(event))[0]
        raise Refused(405, "the list takes GET and POST")
    if method == "GET":
        rows = ask(context, "SELECT * FROM notes WHERE id = %s", number)
    elif method == "PUT":
        rows = ask(context, "UPDATE notes SET text = %s, changed_at = now() WHERE id = %s RETURNING *", text_of(event), number)
    elif method == "DELETE":
        rows = ask(context, "DELETE FROM notes WHERE id = %s RETURNING *", number)
    else:
        raise Refused(405, "a note takes GET, PUT and DELETE")
    if not rows:
        raise Refused(404, f"there is no note {number}")
    return 200, rows[0]


def handle(event, context):
    try:
        status, body = answer(event, context)
    except Refused as refused:
        log.info("refused: %s", refused)
        return {"statusCode": refused.status, "body": {"error": str(refused)}}
    return {"statusCode": status, "body": body}
