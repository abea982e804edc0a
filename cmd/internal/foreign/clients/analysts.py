"""The tools of docs/analytics.md, by the snippets of that page, on the records of a real broker."""
import collections
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import urllib.request

import clickhouse_connect
import duckdb
import ibis
import nbclient
import nbformat
import pandas
import pm4py
import polars
from sqlalchemy import create_engine, text

import checks
from checks import equal, raises

host, port, root = os.environ["HOST"], os.environ["HTTP_PORT"], os.environ["ROOT"]
bin = os.path.dirname(sys.executable)
password = open("data/secrets/clickhouse-modeller").read().strip()
modeller = clickhouse_connect.get_client(host=host, port=int(port), username="modeller", password=password)

with gzip.open(root + "/pkg/warehouse/testdata/camunda-8.6.0.ndjson.gz") as f:
    sample = sorted((json.loads(line) for line in f), key=lambda r: r["timestamp"])
snippets = re.findall(r"```(python|sh)\n(.*?)```", open(root + "/docs/analytics.md").read().split("## Tools\n")[1].split("## Views\n")[0], re.S)


def post(records):
    for at in range(0, len(records), 3000):
        request = urllib.request.Request(os.environ["API"] + "/flow/flowRecord/batch?wait=stored", json.dumps(records[at:at + 3000]).encode(),
                                         {"Authorization": os.environ["TOKEN"], "Content-Type": "application/json"})
        equal(json.load(urllib.request.urlopen(request)), {"status": "OK"})


def events(value_type):
    """the events of each key, in order"""
    of = collections.defaultdict(list)
    for r in sorted(sample, key=lambda r: r["position"]):  # a key belongs to one partition
        if r["recordType"] == "EVENT" and r["valueType"] == value_type:
            of[r["key"]].append(r)
    return of.values()


def truth(without=()):
    """the median of completed executions of each element but those of some types, by the records alone"""
    took = collections.defaultdict(list)
    for element in events("PROCESS_INSTANCE"):
        at = {r["intent"]: r["timestamp"] for r in element}
        last = element[-1]["value"]  # after migrations
        if "ELEMENT_COMPLETED" in at and last["bpmnElementType"] not in without:
            took[last["bpmnProcessId"], last["elementId"]].append(at["ELEMENT_COMPLETED"] - at["ELEMENT_ACTIVATED"])
    return {element: statistics.median(times) for element, times in took.items()}


def rows(answer):
    """what a tool answers, as {(process, element): ms}"""
    if isinstance(answer, pandas.Series):
        answer = answer.reset_index()
    if isinstance(answer, ibis.Expr):
        answer = answer.execute()
    if isinstance(answer, pandas.DataFrame):
        answer = answer.values.tolist()
    if isinstance(answer, polars.DataFrame):
        answer = answer.rows()
    if isinstance(answer, duckdb.DuckDBPyRelation):
        answer = answer.fetchall()
    equal([r[2] for r in answer], sorted((r[2] for r in answer), reverse=True))
    return {(process, element): ms for process, element, ms in answer}


def snippet(code):
    def check():
        names = {}
        exec(code.replace("8123", port), names)
        given = re.search(r'data=b"(.*)"', code)
        equal(rows(names["slowest"]), {e: ms for e, ms in truth().items() if not given or e[0] in given[1].split(r"\n")})
    check.__doc__ = "the snippet that imports " + ", ".join(re.findall(r"(?:^import|^from) (\w+)", code, re.M))
    return check


def dbt(*more):
    command = re.sub("data/", os.getcwd() + "/data/", next(code for kind, code in snippets if kind == "sh").strip())
    done = subprocess.run(["sh", "-euc", " ".join([command, *more])], cwd=root, capture_output=True, text=True,
                          env={**os.environ, "PATH": bin + ":" + os.environ["PATH"], "CLICKHOUSE_PORT": port, "DBT_TARGET_PATH": os.getcwd() + "/dbt", "DBT_LOG_PATH": os.getcwd() + "/dbt"})
    if done.returncode:
        raise AssertionError(re.split(r"Failure in|Error in|Encountered", done.stdout)[-1] + done.stderr)


def built():
    """dbt's package builds views, a table, and an increment, and its tests pass"""
    half = len(sample) // 2
    post(sample[:half])
    dbt()
    # A row that only a full build would remove.
    modeller.command("INSERT INTO models.instances (source, process_instance_key, process, last_seen) VALUES ('kept', '1', 'kept', '2020-01-01 00:00:00')")
    post(sample[half:])
    dbt("--vars", "'{late_hours: 0}'")
    same = "SELECT * EXCEPT (last_seen, day) FROM %s WHERE source != 'kept' ORDER BY source, process_instance_key"
    equal(modeller.query(same % "models.instances").result_rows, modeller.query((same % "models.stg_instances").replace(", day", "")).result_rows)
    equal(modeller.command("SELECT count() FROM models.instances WHERE source = 'kept'"), 1)
    started = [e for e in events("PROCESS_INSTANCE") if e[0]["value"]["bpmnElementType"] == "PROCESS" and any(r["intent"] == "ELEMENT_ACTIVATED" for r in e)]
    equal(modeller.command("SELECT count() FROM models.instances"), len(started) + 1)
    equal({(p, e): ms for p, e, ms in modeller.query("SELECT process, element, median_ms FROM models.element_times WHERE median_ms IS NOT NULL").result_rows},
          truth(without=("PROCESS", "MULTI_INSTANCE_BODY")))


def sluice(*command):
    done = subprocess.run([os.environ["SLUICE"], *command], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr[-500:])


def mined():
    """pm4py reads the export: its cases have the variables, callers, and roots of the records"""
    sluice("export", "--data", os.environ["DATA"], "--clickhouse-http", host + ":" + port, "--format", "xes", "--variable", "ck", "--variable", "loopCounter", "--out", "log.xes.gz")
    log = pm4py.read_xes("log.xes.gz").groupby("case:processInstanceKey").first()
    parent = {str(e[0]["key"]): str(e[0]["value"]["parentProcessInstanceKey"]) for e in events("PROCESS_INSTANCE") if e[0]["value"]["bpmnElementType"] == "PROCESS"}
    last = [[r["value"] for r in v if r["intent"] != "MIGRATED"][-1] for v in events("VARIABLE")]  # MIGRATED has no value
    of_instances = {(str(v["processInstanceKey"]), v["name"]): json.loads(v["value"]) for v in last if v["scopeKey"] == v["processInstanceKey"]}
    assert len(log) > 200 and len(set(log["case:root"])) < len(log), log
    for key, case in log.iterrows():
        root = key
        while parent.get(root, "-1") != "-1":
            root = parent[root]
        equal(case["case:root"], "local/" + root)
        for name in ("ck", "loopCounter"):
            got = case.get("case:variable." + name)
            equal((key, name, str(got) if pandas.notna(got) else None), (key, name, str(of_instances[key, name]) if (key, name) in of_instances else None))


def notebook():
    """the notebook is valid, and answers what it shows"""
    file = root + "/docs/notebooks/bottleneck.ipynb"
    shown = nbformat.read(file, as_version=4)
    nbformat.validate(shown)
    load = re.search(r"bin/sluice (load .*)", shown.cells[0].source)[1]
    sluice(*load.split(), "--url", os.environ["API"], "--token-file", os.environ["DATA"] + "/token")
    ran = nbformat.from_dict(json.loads(json.dumps(shown).replace("port=8123", "port=" + port)))
    nbclient.NotebookClient(ran, timeout=300).execute()
    for was, now in zip(shown.cells, ran.cells):
        if was.cell_type == "code":
            answer = [nbformat.v4.new_output("execute_result", {"text/plain": o.data["text/plain"]}) for o in now.outputs]
            if "UPDATE" in os.environ:
                was.outputs = answer
            equal([o.data["text/plain"] for o in was.outputs], [o.data["text/plain"] for o in answer])
    if "UPDATE" in os.environ:
        nbformat.write(shown, file)


def refused():
    """dbt's user cannot write to the records"""
    raises(497, lambda: modeller.command("INSERT INTO flow.records (source) VALUES ('a')"))


def typed():
    """ibis has a type for every column of every view"""
    flow = ibis.clickhouse.connect(host=host, port=int(port), database="flow")
    views = [v for v in flow.list_tables() if v.startswith("v_")]
    assert len(views) >= 20, views
    equal([(v, name) for v in views for name, kind in flow.table(v).schema().items() if isinstance(kind, ibis.expr.datatypes.Unknown)], [])


def sqlalchemy():
    """clickhouse-sqlalchemy over HTTP, with and without a user"""
    for user in ("", "default@"):
        with create_engine("clickhouse+http://%s%s:%s/flow" % (user, host, port)).connect() as c:
            equal(c.execute(text("SELECT currentUser()")).scalar(), "analyst")


programs = [snippet(code) for kind, code in snippets if kind == "python"]
equal(len(programs), 6)
checks.run([built, refused, *programs, typed, sqlalchemy, mined, notebook])
