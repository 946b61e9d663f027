"""One query to PostgreSQL, read-only and within the call's limit. Meant for `sless invoke`: deploy it without a trigger."""

import os

import psycopg

MOST_ROWS = 1000


def refuse(message):
    return {"statusCode": 400, "body": {"error": message}}


def handle(event, context):
    if not isinstance(event, dict) or not isinstance(event.get("query"), str):
        return refuse("send a JSON object with a `query`, and `parameters` for its %s, if it has any")
    parameters = event.get("parameters", [])
    if not isinstance(parameters, list):
        return refuse("`parameters` must be a list")

    with psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=5) as connection:
        connection.read_only = True
        # The database gives up before the call is killed, and says so.
        left_ms = max(1, context.remaining_ms() - 500)
        connection.execute("SELECT set_config('statement_timeout', %s, true)", [str(int(left_ms))])
        try:
            with connection.cursor() as cursor:
                cursor.execute(event["query"], parameters or None)
                if cursor.description is None:
                    return refuse("the query gives no rows")
                rows = cursor.fetchmany(MOST_ROWS + 1)
                columns = [column.name for column in cursor.description]
        except psycopg.errors.QueryCanceled:
            return {"statusCode": 504, "body": {"error": f"the database did not answer within {left_ms / 1000:.1f} s"}}
        except psycopg.Error as error:
            return refuse(str(error).strip())
    print(f"{len(rows)} rows of {', '.join(columns)}")
    # Times, UUIDs and decimals have a JSON form without any help.
    return {"columns": columns, "rows": rows[:MOST_ROWS], "more": len(rows) > MOST_ROWS}
