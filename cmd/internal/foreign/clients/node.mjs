// The official Node client: HTTP, JSON formats.
import { createRequire } from "node:module";

const { createClient, ClickHouseLogLevel } = createRequire(process.env.CLIENTS + "/")("@clickhouse/client");
const url = `http://${process.env.HOST}:${process.env.HTTP_PORT}`;
const quiet = { log: { level: ClickHouseLogLevel.OFF } };
const admin = { ...quiet, url, username: "admin", password: process.env.ADMIN_PASSWORD, database: "foreign" };
const client = createClient(admin);
const analyst = createClient({ ...quiet, url });

function equal(got, want) {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}
const rows = async (c, query, more = {}) => (await c.query({ query, format: "JSONEachRow", ...more })).json();

const checks = {
  "connects as both users": async () => {
    equal((await client.ping()).success, true);
    equal(await rows(client, "SELECT currentUser() AS u"), [{ u: "admin" }]);
    equal(await rows(analyst, "SELECT currentUser() AS u"), [{ u: "analyst" }]);
  },
  "parameters are bound by the server": async () => {
    equal(await rows(client, "SELECT {a:Int32} + 1 AS a, {s:String} AS s, {l:Array(UInt8)} AS l", { query_params: { a: 4, s: "it's", l: [1, 2] } }), [{ a: 5, s: "it's", l: [1, 2] }]);
  },
  "inserts objects and streams": async () => {
    await client.command({ query: "CREATE OR REPLACE TABLE n (a UInt32, s String) ENGINE = MergeTree ORDER BY a" });
    await client.insert({ table: "n", values: Array.from({ length: 5000 }, (_, a) => ({ a, s: String(a) })), format: "JSONEachRow" });
    equal(await rows(client, "SELECT count() AS c FROM n"), [{ c: 5000 }]);
  },
  "large results are streamed": async () => {
    let seen = 0;
    const result = await client.query({ query: "SELECT number FROM numbers(100000)", format: "JSONEachRow" });
    for await (const part of result.stream()) seen += part.length;
    equal(seen, 100000);
  },
  "requests and answers are compressed": async () => {
    const c = createClient({ ...admin, compression: { request: true, response: true } });
    await c.insert({ table: "n", values: [{ a: 9000, s: "x" }], format: "JSONEachRow" });
    equal(await rows(c, "SELECT s FROM n WHERE a = 9000"), [{ s: "x" }]);
    await c.close();
  },
  "a session keeps its tables": async () => {
    const c = createClient({ ...admin, session_id: "node-1" });
    await c.command({ query: "CREATE TEMPORARY TABLE tmp (a Int8) ENGINE = Memory" });
    await c.command({ query: "INSERT INTO tmp VALUES (1)" });
    equal(await rows(c, "SELECT count() AS c FROM tmp"), [{ c: 1 }]);
    await c.close();
  },
  "errors have ClickHouse's codes": async () => {
    for (const [query, code] of [["SELECT * FROM nosuch", "60"], ["SELEC 1", "62"]]) {
      const err = await client.query({ query }).then(() => ({}), (e) => e);
      equal(err.code, code);
    }
  },
  "the response has its query_id and the rows read": async () => {
    const result = await client.query({ query: "SELECT 1 AS a", format: "JSON", query_id: "node-query-1" });
    equal(result.query_id, "node-query-1");
    const body = await result.json();
    equal([body.data, body.rows, body.meta], [[{ a: 1 }], 1, [{ name: "a", type: "UInt8" }]]);
  },
  "totals and extremes": async () => {
    const result = await client.query({ query: "SELECT number % 2 AS k, toUInt8(count()) AS c FROM numbers(10) GROUP BY k WITH TOTALS ORDER BY k", format: "JSON", clickhouse_settings: { extremes: 1 } });
    const body = await result.json();
    equal([body.totals, body.extremes], [{ k: 0, c: 10 }, { min: { k: 0, c: 5 }, max: { k: 1, c: 5 } }]);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok\t${name}`);
  } catch (err) {
    failed++;
    console.log(`FAIL\t${name}\t${String(err.message ?? err).replace(/\s+/g, " ").slice(0, 200)}`);
  }
}
await Promise.all([client.close(), analyst.close()]);
process.exit(failed ? 1 : 0);
