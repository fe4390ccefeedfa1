package io.sluice.spark.registration;

import java.util.Optional;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Function;

/**
 * A reason for a shuffle to use Spark's own shuffle. It is asked once, when the shuffle is
 * registered; the decision holds for the shuffle's whole life.
 *
 * @param name name in logs and on the page in Spark's UI
 * @param metric counter of the shuffles that it has decided
 * @param reason returns why a shuffle falls back; empty if this policy does not apply
 */
record FallbackPolicy(
        String name, LongAdder metric, Function<NewShuffle, Optional<String>> reason) {}
