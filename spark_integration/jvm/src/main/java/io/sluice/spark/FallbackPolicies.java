package io.sluice.spark;

import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Function;
import org.apache.spark.SparkConf;

/** The policies there are, in the order in which they are asked; the first that has a reason decides. */
final class FallbackPolicies {
  static final String DISABLED = "disabled";
  static final String TOO_SMALL = "too-small";
  static final String NO_TASK_MANAGER = "no-taskmanager";

  private FallbackPolicies() {}

  /**
   * @param noTaskManager why no TaskManager is reachable for a shuffle, or empty; it may wait for executors, so it is
   *     asked last
   */
  static List<FallbackPolicy> of(
      SluiceSettings settings, Function<NewShuffle, Optional<String>> noTaskManager) {
    SluiceMetrics metrics = SluiceMetrics.INSTANCE;
    return List.of(
        new FallbackPolicy(
            DISABLED, metrics.fallbackDisabled, shuffle -> disabled(shuffle, settings.enabled())),
        new FallbackPolicy(
            TOO_SMALL, metrics.fallbackTooSmall, shuffle -> tooSmall(shuffle, settings.fallbackBelowBytes())),
        new FallbackPolicy(NO_TASK_MANAGER, metrics.fallbackNoTaskManager, noTaskManager));
  }

  private static Optional<String> disabled(NewShuffle shuffle, boolean enabled) {
    String text = shuffle.setting(SluiceSettings.ENABLED).orElse(Boolean.toString(enabled));
    return switch (text.trim().toLowerCase(Locale.ROOT)) {
      case "true" -> Optional.empty();
      case "false" ->
          Optional.of(SluiceSettings.ENABLED + "=false for " + (enabled ? "this query or job" : "the application"));
      default -> throw wrong(shuffle, SluiceSettings.ENABLED, text, "must be true or false");
    };
  }

  private static Optional<String> tooSmall(NewShuffle shuffle, long applicationBelowBytes) {
    long belowBytes =
        shuffle
            .setting(SluiceSettings.FALLBACK_BELOW)
            .map(text -> size(shuffle, SluiceSettings.FALLBACK_BELOW, text))
            .orElse(applicationBelowBytes);
    if (belowBytes == 0) {
      return Optional.empty();
    }
    OptionalLong bytes = shuffle.inputBytes();
    return bytes.isPresent() && bytes.getAsLong() < belowBytes
        ? Optional.of(
            "its map tasks read "
                + bytes.getAsLong()
                + " bytes, less than "
                + SluiceSettings.FALLBACK_BELOW
                + "="
                + belowBytes)
        : Optional.empty();
  }

  private static long size(NewShuffle shuffle, String key, String text) {
    try {
      long bytes = new SparkConf(false).set(key, text.trim()).getSizeAsBytes(key);
      if (bytes >= 0) {
        return bytes;
      }
    } catch (IllegalArgumentException e) {
      throw wrong(shuffle, key, text, e.getMessage());
    }
    throw wrong(shuffle, key, text, "must not be negative");
  }

  private static IllegalArgumentException wrong(NewShuffle shuffle, String key, String text, String why) {
    return new IllegalArgumentException(
        key
            + " is '"
            + text
            + "' in the session or the thread that registers shuffle "
            + shuffle.shuffleId()
            + ": "
            + why);
  }
}
