package io.sluice.spark;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.util.concurrent.atomic.LongAdder;

/** What an executor (or the driver) counts; shown by Spark's metrics system under the plugin's name. */
final class SluiceMetrics {
  static final SluiceMetrics INSTANCE = new SluiceMetrics();

  final LongAdder bytesWritten = new LongAdder();
  final LongAdder mapOutputsCommitted = new LongAdder();
  final LongAdder mapOutputsAborted = new LongAdder();
  final LongAdder localBytesRead = new LongAdder();
  final LongAdder remoteBytesRead = new LongAdder();
  final LongAdder streamsRead = new LongAdder();
  final LongAdder fetchFailures = new LongAdder();
  final LongAdder endpointFailovers = new LongAdder();
  final LongAdder fallbackShuffles = new LongAdder();

  private SluiceMetrics() {}

  void register(MetricRegistry registry) {
    gauge(registry, "bytesWritten", bytesWritten);
    gauge(registry, "mapOutputsCommitted", mapOutputsCommitted);
    gauge(registry, "mapOutputsAborted", mapOutputsAborted);
    gauge(registry, "localBytesRead", localBytesRead);
    gauge(registry, "remoteBytesRead", remoteBytesRead);
    gauge(registry, "streamsRead", streamsRead);
    gauge(registry, "fetchFailures", fetchFailures);
    gauge(registry, "endpointFailovers", endpointFailovers);
    gauge(registry, "fallbackShuffles", fallbackShuffles);
  }

  private static void gauge(MetricRegistry registry, String name, LongAdder adder) {
    registry.register(name, (Gauge<Long>) adder::sum);
  }
}
