package io.sluice.spark.driver;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import io.sluice.spark.common.SluiceMetrics;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/** Sums the counters of the driver and of all executors. Thread safe. */
public final class ApplicationCounters {
    private final SluiceMetrics own;
    private final Map<String, LongAdder> reported;

    public ApplicationCounters(SluiceMetrics own) {
        this.own = own;
        Map<String, LongAdder> adders = new LinkedHashMap<>();
        own.meanings().keySet().forEach(name -> adders.put(name, new LongAdder()));
        this.reported = Collections.unmodifiableMap(adders);
    }

    /** Adds the report of an executor: alternating names and numbers. */
    public void add(String[] namesAndNumbers, int from) {
        for (int i = from; i + 1 < namesAndNumbers.length; i += 2) {
            LongAdder adder = reported.get(namesAndNumbers[i]);
            if (adder == null) {
                throw new IllegalArgumentException("unknown counter " + namesAndNumbers[i]);
            }
            adder.add(Long.parseLong(namesAndNumbers[i + 1]));
        }
    }

    /** Adds the report of an executor on its map tasks' waits for credit. */
    public void addCreditWaits(Map<Integer, Long> nanosByStage) {
        own.creditWaits().addAll(nanosByStage);
    }

    /** Returns how long map tasks waited for credit, by stage. */
    public Map<Integer, Long> creditWaitNanos() {
        return own.creditWaits().sums();
    }

    public long sum(String name) {
        return own.value(name) + reported.get(name).sum();
    }

    /** Returns all sums by name, in the order of the reference page. */
    public Map<String, Long> sums() {
        Map<String, Long> sums = new LinkedHashMap<>();
        reported.keySet().forEach(name -> sums.put(name, sum(name)));
        return sums;
    }

    public void register(MetricRegistry registry) {
        reported.keySet().forEach(name -> registry.register(name, (Gauge<Long>) () -> sum(name)));
    }
}
