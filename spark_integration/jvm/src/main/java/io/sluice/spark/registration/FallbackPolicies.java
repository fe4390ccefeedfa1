package io.sluice.spark.registration;

import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.settings.SluiceSettings;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Function;
import java.util.function.ToLongFunction;

/** Makes the fallback policies, in their order. The first policy with a reason decides. */
public final class FallbackPolicies {
    static final String DISABLED = "disabled";
    static final String UNSUPPORTED = "unsupported";
    static final String TOO_SMALL = "too-small";
    static final String NO_TASK_MANAGER = "no-taskmanager";

    private FallbackPolicies() {}

    /**
     * Makes the policies for the settings of an application.
     *
     * @param enabled {@code spark.sluice.enabled} of the application
     * @param belowBytes {@code spark.sluice.fallback.belowSize} of the application
     * @param sizes parses the text of a size as Spark does
     * @param noTaskManager returns why no TaskManager is reachable for a shuffle, or empty; may
     *     wait for executors
     */
    public static List<FallbackPolicy> of(
            boolean enabled,
            long belowBytes,
            ToLongFunction<String> sizes,
            Function<NewShuffle, Optional<String>> noTaskManager) {
        SluiceMetrics metrics = SluiceMetrics.INSTANCE;
        return List.of(
                new FallbackPolicy(
                        DISABLED, metrics.fallbackDisabled, shuffle -> disabled(shuffle, enabled)),
                new FallbackPolicy(
                        UNSUPPORTED, metrics.fallbackUnsupported, NewShuffle::unsupported),
                new FallbackPolicy(
                        TOO_SMALL,
                        metrics.fallbackTooSmall,
                        shuffle -> tooSmall(shuffle, belowBytes, sizes)),
                new FallbackPolicy(NO_TASK_MANAGER, metrics.fallbackNoTaskManager, noTaskManager));
    }

    private static Optional<String> disabled(NewShuffle shuffle, boolean enabled) {
        String text = shuffle.setting(SluiceSettings.ENABLED).orElse(Boolean.toString(enabled));
        return switch (text.trim().toLowerCase(Locale.ROOT)) {
            case "true" -> Optional.empty();
            case "false" ->
                    Optional.of(
                            SluiceSettings.ENABLED
                                    + "=false for "
                                    + (enabled ? "this query or job" : "the application"));
            default -> throw wrong(shuffle, SluiceSettings.ENABLED, text, "must be true or false");
        };
    }

    private static Optional<String> tooSmall(
            NewShuffle shuffle, long applicationBelowBytes, ToLongFunction<String> sizes) {
        long belowBytes =
                shuffle.setting(SluiceSettings.FALLBACK_BELOW)
                        .map(text -> size(shuffle, text, sizes))
                        .orElse(applicationBelowBytes);
        if (belowBytes == 0) {
            return Optional.empty();
        }
        OptionalLong bytes = shuffle.inputBytes();
        return bytes.isPresent() && bytes.getAsLong() < belowBytes
                ? Optional.of(
                        String.format(
                                "its map tasks read %d bytes, less than %s=%d",
                                bytes.getAsLong(), SluiceSettings.FALLBACK_BELOW, belowBytes))
                : Optional.empty();
    }

    private static long size(NewShuffle shuffle, String text, ToLongFunction<String> sizes) {
        long bytes;
        try {
            bytes = sizes.applyAsLong(text.trim());
        } catch (IllegalArgumentException e) {
            throw wrong(shuffle, SluiceSettings.FALLBACK_BELOW, text, e.getMessage());
        }
        if (bytes < 0) {
            throw wrong(shuffle, SluiceSettings.FALLBACK_BELOW, text, "must not be negative");
        }
        return bytes;
    }

    private static IllegalArgumentException wrong(
            NewShuffle shuffle, String key, String text, String why) {
        return new IllegalArgumentException(
                String.format(
                        "%s is '%s' in the session or the thread that registers shuffle %d: %s",
                        key, text, shuffle.shuffleId(), why));
    }
}
