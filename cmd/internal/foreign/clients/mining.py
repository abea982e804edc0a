"""pm4py and pandas: they read what sluice export writes."""
import json
import os
import subprocess

import pandas
import pm4py
from lxml import etree

import checks
from checks import equal

sluice, data = os.environ["SLUICE"], os.environ["DATA"]
clickhouse = "%s:%s" % (os.environ["HOST"], os.environ["HTTP_PORT"])


def run(*command):
    done = subprocess.run([sluice, *command], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError("sluice %s: %s" % (command[0], done.stderr[-500:]))


def export(kind, name):
    run("export", "--data", data, "--clickhouse-http", clickhouse, "--source", "local", "--format", kind, "--out", name)
    return name


with open("truth.json") as f:
    truth = json.load(f)
rows = pandas.read_csv(export("csv", "log.csv"), dtype=str, keep_default_na=False)
completed = rows[rows["lifecycle:transition"] == "complete"]
# Steps that follow each other in every order, as the model of the process says.
follow = {("order_placed", "reserve"), ("reserve", "in_stock")}


def csv():
    """pandas reads CSV, and it is the truth"""
    equal(rows["case:concept:name"].nunique(), truth["instances"])
    equal(completed["concept:name"].value_counts().to_dict(), truth["ended"])


def schema():
    """XES is valid by its schema"""
    xsd = etree.XMLSchema(etree.parse(os.path.join(os.path.dirname(os.path.abspath(__file__)), "xes.xsd")))
    log = etree.parse(export("xes", "log.xes"))
    xsd.assertValid(log)
    declared(log.getroot())


def declared(log):
    """what no schema can say: a log declares every extension it uses, and every event has the global attributes"""
    prefixes = {extension.get("prefix") for extension in log.iter("extension")}
    used = {key.split(":")[0] for key in log.xpath("//@key") if ":" in key}
    equal(used - prefixes, set())
    everywhere = {scope.get("scope"): {a.get("key") for a in scope} for scope in log.iter("global")}
    for classifier in log.iter("classifier"):
        equal(set(classifier.get("keys").split()) - everywhere[classifier.get("scope")], set())
    for scope, keys in everywhere.items():
        for component in log.iter(scope):
            equal(keys - {a.get("key") for a in component}, set())


def xes():
    """XES is read by pm4py, event by event"""
    log = pm4py.read_xes(export("xes", "log.xes.gz"))
    equal(len(log), len(rows))
    equal(log["case:concept:name"].nunique(), rows["case:concept:name"].nunique())
    equal(sorted(log["concept:name"] + log["lifecycle:transition"]), sorted(rows["concept:name"] + rows["lifecycle:transition"]))
    moments = pandas.to_datetime(rows["time:timestamp"], format="ISO8601", utc=True)
    equal(sorted(log["time:timestamp"]), sorted(moments))


def discovered():
    """pm4py discovers the process from XES"""
    log = pm4py.read_xes("log.xes.gz")
    orders = log[(log["case:process"] == "order") & (log["lifecycle:transition"] == "complete")]
    graph, first, _ = pm4py.discover_dfg(orders)
    equal(follow - set(graph), set())
    equal(set(first), {"order_placed"})
    net, _, _ = pm4py.discover_petri_net_inductive(orders)
    equal({t.label for t in net.transitions if t.label}, set(orders["concept:name"]))


def objects(log):
    """what an object-centric log must have"""
    equal(set(pm4py.ocel_get_object_types(log)), {"instance", "element", "job", "user task", "incident", "definition"})
    instances = log.objects[log.objects["ocel:type"] == "instance"]
    equal(len(instances), rows["case:concept:name"].nunique())
    ends = log.events[log.events["ocel:activity"].isin(set(rows["concept:name"]))]
    equal(sorted(ends["ocel:activity"]), sorted(completed["concept:name"]))
    edges = pm4py.discover_ocdfg(log)["edges"]["event_couples"]
    for kind, edge in (("instance", ("reserve", "in_stock")), ("job", ("job created", "job completed")), ("user task", ("user task created", "user task assigned"))):
        equal((kind, edge in edges[kind]), (kind, True))


def ocel_json():
    """OCEL 2.0 as JSON is read, and its process is discovered"""
    objects(pm4py.read_ocel2_json(export("ocel", "log.json")))


def parquet():
    """pandas reads Parquet, with its types"""
    log = pandas.read_parquet(export("parquet", "log.parquet"))
    equal(list(log.columns), list(rows.columns))
    equal(str(log["time:timestamp"].dtype), "datetime64[ms, UTC]")
    equal(sorted(log["concept:instance"] + log["lifecycle:transition"]), sorted(rows["concept:instance"] + rows["lifecycle:transition"]))
    graph, _, _ = pm4py.discover_dfg(log[log["case:process"] == "order"][lambda rows: rows["lifecycle:transition"] == "complete"])
    equal(follow - set(graph), set())


def ndjson():
    """pandas reads NDJSON"""
    log = pandas.read_json(export("ndjson", "log.ndjson.gz"), lines=True, dtype={"concept:instance": str})
    equal(len(log), len(rows))
    equal(list(log.columns), list(rows.columns))


checks.run([csv, schema, xes, discovered, ocel_json, parquet, ndjson])
