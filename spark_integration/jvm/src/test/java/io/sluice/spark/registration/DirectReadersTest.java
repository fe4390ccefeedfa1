package io.sluice.spark.registration;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class DirectReadersTest {
    private static final String DELTA = "org.apache.spark.sql.delta.perf.DeltaOptimizedWriterExec";
    private static final String EXCHANGE =
            "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec";
    private static final String PLAN = "org.apache.spark.sql.execution.SparkPlan";

    @Test
    void theExchangeOfAnOptimizedWriteIsLeftToSpark() {
        assertEquals(
                Optional.of(
                        "Delta Lake's optimized write reads its blocks with Spark's own block"
                                + " client"),
                DirectReaders.reason(
                        Stream.of(
                                "org.apache.spark.ShuffleDependency",
                                EXCHANGE + "$",
                                EXCHANGE,
                                PLAN,
                                DELTA,
                                PLAN)));
    }

    @Test
    void anExchangeBelowAnOptimizedWriteIsNot() {
        assertEquals(
                Optional.empty(),
                DirectReaders.reason(
                        Stream.of(
                                "org.apache.spark.ShuffleDependency",
                                EXCHANGE + "$",
                                EXCHANGE,
                                PLAN,
                                "org.apache.spark.sql.execution.aggregate.HashAggregateExec",
                                PLAN,
                                DELTA)));
    }

    @Test
    void anExchangeOfAnRddIsNot() {
        assertEquals(
                Optional.empty(),
                DirectReaders.reason(
                        Stream.of(
                                "org.apache.spark.ShuffleDependency",
                                "org.apache.spark.rdd.ShuffledRDD",
                                "org.apache.spark.scheduler.DAGScheduler")));
    }
}
