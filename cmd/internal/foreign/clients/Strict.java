import co.elastic.clients.elasticsearch.ElasticsearchClient;
import co.elastic.clients.elasticsearch.core.BulkRequest;
import co.elastic.clients.json.jackson.JacksonJsonpMapper;
import co.elastic.clients.transport.rest_client.RestClientTransport;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.http.Header;
import org.apache.http.HttpHost;
import org.apache.http.message.BasicHeader;
import org.elasticsearch.client.RestClient;

/**
 * Elasticsearch's own typed client for Java, with which the exporters of Camunda
 * 8.9 post: it takes no answer in which a member is missing that it knows.
 */
public class Strict {
  static final int RECORDS = 1000;

  public static void main(String[] args) throws Exception {
    String token = System.getenv("SHIPPERS_TOKEN");
    String basic = "Basic " + Base64.getEncoder().encodeToString(("strict:" + token).getBytes(StandardCharsets.UTF_8));
    var rest = RestClient.builder(HttpHost.create(System.getenv("ELASTIC"))).setDefaultHeaders(new Header[] {new BasicHeader("Authorization", basic)}).build();
    var client = new ElasticsearchClient(new RestClientTransport(rest, new JacksonJsonpMapper()));
    boolean failed = false;
    failed |= !check("it accepts the version", () -> equal(client.info().version().number().startsWith("8."), true));
    failed |= !check("templates, policies and settings are acknowledged", () -> {
      equal(client.cluster().putComponentTemplate(t -> t.name("zeebe-record-8.9.0").template(m -> m)).acknowledged(), true);
      equal(client.indices().putIndexTemplate(t -> t.name("zeebe-record_job_8.9.0").indexPatterns("zeebe-record_job_8.9.0_*")).acknowledged(), true);
      equal(client.indices().putSettings(s -> s.index("zeebe-record*").allowNoIndices(true).settings(x -> x.numberOfReplicas("1"))).acknowledged(), true);
    });
    for (String round : new String[] {"a bulk is taken", "a bulk that comes again is taken"}) {
      failed |= !check(round, () -> {
        var bulk = new BulkRequest.Builder();
        for (int i = 1; i <= RECORDS; i++) {
          int position = i;
          Map<String, Object> record = Map.ofEntries(Map.entry("partitionId", 9), Map.entry("position", position), Map.entry("key", (9L << 51) + position),
              Map.entry("timestamp", 1763700000000L + position), Map.entry("recordType", "EVENT"), Map.entry("valueType", "JOB"), Map.entry("intent", "CREATED"),
              Map.entry("brokerVersion", "8.9.0"), Map.entry("recordVersion", 1), Map.entry("value", Map.of("type", "pay", "processInstanceKey", (9L << 51) + 7)));
          bulk.operations(op -> op.index(x -> x.index("zeebe-record_job_8.9.0_2025-11-21").id("9-" + position).routing("9").document(record)));
        }
        var answer = client.bulk(bulk.build());
        equal(answer.errors(), false);
        equal(answer.items().size(), RECORDS);
        equal(answer.items().get(RECORDS - 1).status(), 201);
        equal(answer.items().get(RECORDS - 1).id(), "9-" + RECORDS);
      });
    }
    failed |= !check("each record is stored once", () -> {
      var http = HttpClient.newHttpClient();
      String stored = null;
      for (int i = 0; i < 20 && !"true".equals(stored); i++) {
        stored = http.send(HttpRequest.newBuilder(URI.create(System.getenv("API") + "/flow/flowRecord/batch")).header("Authorization", "Bearer " + token)
            .header("Content-Type", "application/json").header("Prefer", "wait=10").POST(HttpRequest.BodyPublishers.ofString("[]")).build(),
            HttpResponse.BodyHandlers.ofString()).headers().firstValue("Sluice-Stored").orElse(null);
      }
      equal(stored, "true");
      String sql = "SELECT concat(toString(count()), ' ', toString(uniqExact(position)), ' ', toString(max(key))) FROM flow.records WHERE source = 'shippers' AND partition_id = 9";
      var rows = http.send(HttpRequest.newBuilder(URI.create("http://" + System.getenv("HOST") + ":" + System.getenv("HTTP_PORT") + "/?query="
          + URLEncoder.encode(sql, StandardCharsets.UTF_8))).build(), HttpResponse.BodyHandlers.ofString()).body().strip();
      equal(rows, RECORDS + " " + RECORDS + " " + ((9L << 51) + RECORDS));
    });
    System.exit(failed ? 1 : 0);
  }

  interface Check { void run() throws Exception; }

  static boolean check(String name, Check check) {
    try {
      check.run();
      System.out.println("ok\t" + name);
      return true;
    } catch (Exception | Error e) {
      System.out.println("FAIL\t" + name + "\t" + String.valueOf(e).replaceAll("\\s+", " "));
      return false;
    }
  }

  static void equal(Object got, Object want) {
    if (!got.equals(want)) throw new AssertionError("got " + got + ", want " + want);
  }
}
