"""clickhouse-connect, which notebooks use: HTTP."""
import datetime
import decimal
import os
import uuid

import clickhouse_connect

import checks
from checks import equal, raises

address = dict(host=os.environ["HOST"], port=int(os.environ["HTTP_PORT"]))
admin = dict(address, username="admin", password=os.environ["ADMIN_PASSWORD"])
client = clickhouse_connect.get_client(**admin, database="foreign")
analyst = clickhouse_connect.get_client(**address)


def connects():
    """connects, and reads the server's version"""
    assert client.ping()
    equal(client.command("SELECT currentUser()"), "admin")
    equal(analyst.command("SELECT currentUser()"), "analyst")
    assert client.server_version.split(".")[0] >= "24"


def types():
    """types come back as they are"""
    row = client.query(
        "SELECT toInt8(-1), toUInt64(18446744073709551615), toInt256('-5'), 1.5, 'x', toFixedString('ab', 3), true, NULL, toDate('2026-01-02'), "
        "toDateTime('2026-01-02 03:04:05', 'UTC'), toDecimal64('1.25', 2), toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0'), [1, 2], map('a', 1), "
        "(1, 'b'), toLowCardinality('l'), CAST('a' AS Enum8('a' = 1)), toIPv4('1.2.3.4')"
    ).result_rows[0]
    equal(row[:8], (-1, 18446744073709551615, -5, 1.5, "x", b"ab\x00", True, None))
    equal(row[8], datetime.date(2026, 1, 2))
    equal(row[9].replace(tzinfo=None), datetime.datetime(2026, 1, 2, 3, 4, 5))
    equal(row[10:12], (decimal.Decimal("1.25"), uuid.UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")))
    equal((list(row[12]), row[13], tuple(row[14]), row[15], row[16], str(row[17])), ([1, 2], {"a": 1}, (1, "b"), "l", "a", "1.2.3.4"))


def parameters():
    """parameters are bound by the server"""
    equal(client.query("SELECT {a:Int32} + 1, {s:String}, {l:Array(UInt8)}", parameters={"a": 4, "s": "it's\n", "l": [1, 2]}).result_rows, [(5, "it's\n", [1, 2])])


def inserts():
    """inserts rows and reads them back"""
    client.command("CREATE OR REPLACE TABLE t (a UInt32, s String, n Nullable(Float64), l Array(String), d DateTime64(3)) ENGINE = MergeTree ORDER BY a")
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000)
    rows = [[i, str(i), None if i % 2 else 0.5, ["x"] * (i % 3), at] for i in range(5000)]
    client.insert("t", rows, column_names=["a", "s", "n", "l", "d"])
    equal(client.query("SELECT count(), sum(a), countIf(n IS NULL), sum(length(l)) FROM t").result_rows, [(5000, 12497500, 2500, 4999)])
    equal(client.query("SELECT d FROM t LIMIT 1").first_item["d"].replace(tzinfo=None), at)


def streams():
    """large results are streamed in blocks"""
    seen = 0
    with client.query_column_block_stream("SELECT number FROM numbers(300000)") as stream:
        for block in stream:
            seen += len(block[0])
    equal(seen, 300000)


def compressed():
    """results and inserts are compressed"""
    for method in ("lz4", "zstd", "gzip"):
        c = clickhouse_connect.get_client(**admin, compress=method)
        equal(c.query("SELECT sum(number) FROM numbers(100000)").result_rows, [(4999950000,)])


def sessions():
    """a session keeps its settings and temporary tables"""
    c = clickhouse_connect.get_client(**admin, session_id="foreign-1")
    c.command("CREATE TEMPORARY TABLE tmp (a Int8) ENGINE = Memory")
    c.command("INSERT INTO tmp VALUES (1), (2)")
    equal(c.command("SELECT count() FROM tmp"), 2)


def errors():
    """errors have ClickHouse's codes"""
    raises(60, lambda: client.command("SELECT * FROM nosuch"))
    raises(62, lambda: client.command("SELEC 1"))
    raises(497, lambda: analyst.command("CREATE TABLE foreign.x (a Int8) ENGINE = Memory"))


def shows():
    """tables and columns are described"""
    equal(client.query("DESCRIBE TABLE t").result_rows[0][:2], ("a", "UInt32"))
    assert "t" in client.command("SHOW TABLES")
    assert "MergeTree" in client.command("SHOW CREATE TABLE t")


def formats():
    """raw formats"""
    equal(client.raw_query("SELECT 1 AS a, 'b' AS b", fmt="JSONEachRow"), b'{"a":1,"b":"b"}\n')
    client.raw_insert("t", column_names=["a", "s"], insert_block=b"7000\tx\n7001\ty\n", fmt="TabSeparated")
    equal(client.command("SELECT count() FROM t WHERE a >= 7000"), 2)


checks.run([connects, types, parameters, inserts, streams, compressed, sessions, errors, shows, formats])
