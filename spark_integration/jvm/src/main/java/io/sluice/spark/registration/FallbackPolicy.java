package io.sluice.spark.registration;

import java.util.Optional;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Function;

/**
 * A reason for a shuffle to use Spark's own shuffle, checked once, when the shuffle is registered.
 *
 * @param name name in logs and in Spark's UI
 * @param metric counter of the shuffles that fall back
 * @param reason returns why a shuffle falls back; empty if it does not
 */
record FallbackPolicy(
        String name, LongAdder metric, Function<NewShuffle, Optional<String>> reason) {}
