import io.camunda.zeebe.gateway.protocol.GatewayGrpc;
import io.camunda.zeebe.gateway.protocol.GatewayOuterClass.*;
import io.grpc.ManagedChannelBuilder;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.regex.*;
import java.util.stream.*;

/**
 * Lets a broker of Camunda run a process, through its gateway: ADDRESS, the
 * folder that Journal writes to, the process, the number of instances, and a
 * name for this round. Of five instances one loses a try of its job, one gets an
 * incident that is resolved, one keeps its incident, one waits for its message
 * for ever, and one is canceled. It prints what the tables must come to.
 */
public class Camunda {
  static GatewayGrpc.GatewayBlockingStub gateway;

  public static void main(String[] args) throws Exception {
    var channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    gateway = GatewayGrpc.newBlockingStub(channel);
    var journal = Path.of(args[1]);
    int instances = Integer.parseInt(args[3]);
    String round = args[4];
    until("every partition has a leader", () -> {
      var topology = gateway.withDeadlineAfter(5, TimeUnit.SECONDS).topology(TopologyRequest.newBuilder().build());
      var led = topology.getBrokersList().stream().flatMap(b -> b.getPartitionsList().stream())
          .filter(p -> p.getRole() == Partition.PartitionBrokerRole.LEADER && p.getHealth() == Partition.PartitionBrokerHealth.HEALTHY).count();
      return topology.getPartitionsCount() > 0 && led == topology.getPartitionsCount() ? topology : null;
    });
    until("the process is deployed", () -> gateway.withDeadlineAfter(20, TimeUnit.SECONDS).deployResource(DeployResourceRequest.newBuilder()
        .addResources(Resource.newBuilder().setName("order.bpmn").setContent(com.google.protobuf.ByteString.copyFrom(Files.readAllBytes(Path.of(args[2]))))).build()));

    var keys = new ArrayList<Long>();
    for (int i = 0; i < instances; i++) {
      var request = CreateProcessInstanceRequest.newBuilder().setBpmnProcessId("order").setVersion(-1)
          .setVariables("{\"orderId\":\"" + round + "-" + i + "\",\"number\":" + i + ",\"amount\":19.5}").build();
      keys.add(until("an instance is created", () -> gateway.withDeadlineAfter(20, TimeUnit.SECONDS).createProcessInstance(request)).getProcessInstanceKey());
    }
    int completed = 0, canceled = 0, active = 0, incidents = 0, resolved = 0, failures = 0;
    var left = new TreeSet<>(keys);
    var failed = new HashSet<Long>();
    while (!left.isEmpty()) {
      for (var job : activate(instances)) {
        if (!keys.contains(job.getProcessInstanceKey())) continue;
        int kind = keys.indexOf(job.getProcessInstanceKey()) % 5;
        if (kind < 3 && failed.add(job.getKey())) {
          failures++;
          gateway.failJob(FailJobRequest.newBuilder().setJobKey(job.getKey()).setRetries(kind == 0 ? 1 : 0).setErrorMessage("no money, \"yet\"").build());
          if (kind == 0) continue;
          incidents++;
          if (kind == 2) {
            active++;
            left.remove(job.getProcessInstanceKey());
            continue;
          }
          gateway.updateJobRetries(UpdateJobRetriesRequest.newBuilder().setJobKey(job.getKey()).setRetries(1).build());
          long incident = until("the incident is known", () -> incidentOf(journal, job.getKey()));
          gateway.resolveIncident(ResolveIncidentRequest.newBuilder().setIncidentKey(incident).build());
          resolved++;
          continue;
        }
        gateway.completeJob(CompleteJobRequest.newBuilder().setJobKey(job.getKey()).setVariables("{\"paid\":true}").build());
        left.remove(job.getProcessInstanceKey());
        if (kind == 4) {
          gateway.cancelProcessInstance(CancelProcessInstanceRequest.newBuilder().setProcessInstanceKey(job.getProcessInstanceKey()).build());
          canceled++;
        } else if (kind == 3) {
          active++;
        } else {
          completed++;
          gateway.publishMessage(PublishMessageRequest.newBuilder().setName("parcel").setCorrelationKey(round + "-" + keys.indexOf(job.getProcessInstanceKey()))
              .setTimeToLive(3_600_000).setVariables("{\"parcel\":true}").build());
        }
      }
    }
    int want = completed;
    until("the instances are complete", () -> ended(journal, keys) == want ? true : null);
    System.out.printf("%d %d %d %d %d %d %d%n", instances, completed, canceled, active, incidents, resolved, failures);
    channel.shutdownNow();
  }

  static List<ActivatedJob> activate(int most) {
    var jobs = new ArrayList<ActivatedJob>();
    gateway.withDeadlineAfter(20, TimeUnit.SECONDS).activateJobs(ActivateJobsRequest.newBuilder().setType("pay").setWorker("foreign").setTimeout(60_000)
        .setMaxJobsToActivate(most).setRequestTimeout(500).build()).forEachRemaining(r -> jobs.addAll(r.getJobsList()));
    return jobs;
  }

  /** The key of the incident that was created for a job, as the broker's own log has it. */
  static Long incidentOf(Path journal, long job) throws Exception {
    return lines(journal).filter(l -> l.contains("\"valueType\":\"INCIDENT\"") && l.contains("\"intent\":\"CREATED\"") && l.matches(".*\"jobKey\":" + job + "[,}].*"))
        .map(l -> Long.parseLong(member(l, "key"))).findFirst().orElse(null);
  }

  /** How many of some instances have completed, as the broker's own log has it. */
  static long ended(Path journal, List<Long> keys) throws Exception {
    return lines(journal).filter(l -> l.contains("\"valueType\":\"PROCESS_INSTANCE\"") && l.contains("\"intent\":\"ELEMENT_COMPLETED\"") && l.contains("\"bpmnElementType\":\"PROCESS\""))
        .map(l -> Long.parseLong(member(l, "key"))).distinct().filter(keys::contains).count();
  }

  static Stream<String> lines(Path journal) throws Exception {
    try (var files = Files.list(journal)) {
      var all = new ArrayList<String>();
      for (var f : files.toList()) all.addAll(Files.readAllLines(f));
      return all.stream();
    }
  }

  static String member(String line, String name) {
    var m = Pattern.compile("\"" + name + "\":(-?\\d+)").matcher(line);
    if (!m.find()) throw new IllegalStateException("no " + name + " in " + line);
    return m.group(1);
  }

  interface Attempt<T> { T call() throws Exception; }

  static <T> T until(String what, Attempt<T> attempt) throws Exception {
    Exception last = null;
    for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(240); System.nanoTime() < end; Thread.sleep(300)) {
      try {
        T got = attempt.call();
        if (got != null) return got;
      } catch (io.grpc.StatusRuntimeException e) {
        last = e;
      }
    }
    throw new IllegalStateException("after 4 minutes it is not so: " + what, last);
  }
}
