package io.sluice.spark;

import java.util.Optional;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Function;

/**
 * One reason for a shuffle to go Spark's own way. Asked once, at the shuffle's registration: what
 * was decided holds for the shuffle's whole life.
 *
 * @param name as logs and the page in Spark's UI show it
 * @param metric the counter of the shuffles it has decided
 * @param reason why that shuffle falls back; empty when this policy does not want it to
 */
record FallbackPolicy(
        String name, LongAdder metric, Function<NewShuffle, Optional<String>> reason) {}
