package io.sluice.spark.registration;

import io.sluice.spark.common.SluiceMetrics;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Decides whether a new shuffle goes through Sluice, and records the decision. Thread safe. */
public final class ShuffleRegistrar {
    private static final Logger LOG = LoggerFactory.getLogger(ShuffleRegistrar.class);

    /** Policies that the user has set: no warning. */
    private static final Set<String> AS_SET =
            Set.of(FallbackPolicies.DISABLED, FallbackPolicies.TOO_SMALL);

    private final List<FallbackPolicy> policies;
    private final ShuffleTable table;

    /** Shuffles that go through Sluice; guarded by itself. */
    private final BitSet throughSluice = new BitSet();

    /**
     * @param policies policies in their order
     */
    public ShuffleRegistrar(List<FallbackPolicy> policies, ShuffleTable table) {
        this.policies = policies;
        this.table = table;
    }

    /**
     * Decides whether the shuffle goes through Sluice.
     *
     * @throws IllegalStateException if a policy allows neither way
     */
    public boolean useSluice(NewShuffle shuffle) {
        for (FallbackPolicy policy : policies) {
            Optional<String> reason = policy.reason().apply(shuffle);
            if (reason.isPresent()) {
                SluiceMetrics.INSTANCE.fallbackShuffles.increment();
                policy.metric().increment();
                table.add(shuffle, new ShuffleTable.Decision(policy.name(), reason.get()));
                String line = "Shuffle {} uses Spark's own shuffle: {} (fallback policy {})";
                if (AS_SET.contains(policy.name())) {
                    LOG.info(line, shuffle.shuffleId(), reason.get(), policy.name());
                } else {
                    LOG.warn(line, shuffle.shuffleId(), reason.get(), policy.name());
                }
                return false;
            }
        }
        table.add(shuffle, ShuffleTable.Decision.SLUICE);
        synchronized (throughSluice) {
            throughSluice.set(shuffle.shuffleId());
        }
        return true;
    }

    /** Returns whether the shuffle goes through Sluice; false for one that is not registered. */
    public boolean goesThroughSluice(int shuffleId) {
        synchronized (throughSluice) {
            return throughSluice.get(shuffleId);
        }
    }

    /** Returns whether any shuffle has gone through Sluice. */
    public boolean hasUsedSluice() {
        synchronized (throughSluice) {
            return !throughSluice.isEmpty();
        }
    }
}
