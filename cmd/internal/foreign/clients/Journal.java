import io.camunda.zeebe.exporter.api.Exporter;
import io.camunda.zeebe.exporter.api.context.Context;
import io.camunda.zeebe.exporter.api.context.Controller;
import io.camunda.zeebe.protocol.record.Record;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** An exporter that writes down what the broker's own log holds: every record, a line of JSON each. */
public class Journal implements Exporter {
  private String folder;
  private Controller controller;

  @Override
  public void configure(Context context) {
    folder = (String) context.getConfiguration().getArguments().get("folder");
  }

  @Override
  public void open(Controller controller) {
    this.controller = controller;
  }

  @Override
  public void export(Record<?> record) {
    try {
      Files.writeString(Path.of(folder, "partition-" + record.getPartitionId()), record.toJson() + "\n",
          StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    } catch (java.io.IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
    controller.updateLastExportedRecordPosition(record.getPosition());
  }
}
