"""clickhouse-driver: the native protocol."""
import datetime
import os

from clickhouse_driver import Client, connect

import checks
from checks import equal, raises

address = dict(host=os.environ["HOST"], port=int(os.environ["NATIVE_PORT"]))
admin = dict(address, user="admin", password=os.environ["ADMIN_PASSWORD"], database="foreign")
client = Client(**admin)


def connects():
    """connects as both users"""
    equal(client.execute("SELECT currentUser()"), [("admin",)])
    equal(Client(**address).execute("SELECT currentUser()"), [("analyst",)])


def types():
    """types come back as they are"""
    rows, names = client.execute("SELECT toInt8(-1) AS a, 'x' AS b, NULL AS c, [1, 2] AS d, (1, 'b') AS e, toDateTime('2026-01-02 03:04:05', 'Asia/Tokyo') AS f, map('a', 1) AS g", with_column_types=True)
    equal(rows[0][:5], (-1, "x", None, [1, 2], (1, "b")))
    equal(rows[0][5].replace(tzinfo=None), datetime.datetime(2026, 1, 2, 3, 4, 5))
    equal(names[5], ("f", "DateTime('Asia/Tokyo')"))


def inserts():
    """inserts blocks of rows"""
    client.execute("CREATE OR REPLACE TABLE d (a UInt32, s LowCardinality(String), n Nullable(Int64)) ENGINE = MergeTree ORDER BY a")
    equal(client.execute("INSERT INTO d (a, s, n) VALUES", [(i, str(i % 5), None) for i in range(10000)]), 10000)
    equal(client.execute("SELECT count(), uniqExact(s), count(n) FROM d"), [(10000, 5, 0)])


def compressed():
    """compression lz4"""
    c = Client(**admin, compression="lz4")
    equal(c.execute("SELECT sum(number) FROM numbers(100000)"), [(4999950000,)])
    equal(c.execute("INSERT INTO d (a) VALUES", [(1,), (2,)]), 2)


def parameters():
    """parameters, of the client and of the server"""
    equal(client.execute("SELECT %(a)s, %(s)s", {"a": 5, "s": "it's"}), [(5, "it's")])
    c = Client(**admin, settings={"server_side_params": True})
    equal(c.execute("SELECT {a:Int32}, {s:String}", {"a": 5, "s": "it's"}), [(5, "it's")])


def streams():
    """rows are streamed"""
    equal(sum(1 for _ in client.execute_iter("SELECT number FROM numbers(200000)", {"max_block_size": 10000})), 200000)


def progress():
    """progress is sent while a statement runs"""
    progress = client.execute_with_progress("SELECT sum(number) FROM numbers(1000000)")
    rows = 0
    for done, _ in progress:
        rows = max(rows, done)
    equal(progress.get_result(), [(499999500000,)])
    assert rows > 0, "no progress"


def errors():
    """errors have ClickHouse's codes"""
    raises(60, lambda: client.execute("SELECT * FROM nosuch"))
    raises(62, lambda: client.execute("SELEC 1"))
    equal(client.execute("SELECT 1"), [(1,)])


def dbapi():
    """the DB API"""
    with connect(**admin) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT number, toString(number) FROM numbers(3)")
            equal(cursor.fetchall(), [(0, "0"), (1, "1"), (2, "2")])
            equal([c[0] for c in cursor.description], ["number", "toString(number)"])


checks.run([connects, types, inserts, compressed, parameters, streams, progress, errors, dbapi])
