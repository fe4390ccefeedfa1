package io.sluice.spark.common;

import io.sluice.spark.settings.SluiceSettings;
import java.io.IOException;

/**
 * Thrown when no TaskManager answers. The message has a reason for each endpoint, and the remedy.
 */
public final class NoTaskManagerException extends IOException {
    private final String reasons;

    /**
     * @param who from where none is reachable, as in "from any executor"
     * @param reasons one reason for each endpoint
     */
    public NoTaskManagerException(String who, String reasons, SluiceSettings settings) {
        super(message(who, reasons, settings));
        this.reasons = reasons;
    }

    /** Returns the reasons without the remedy. */
    public String reasons() {
        return reasons;
    }

    /** Builds the message for users. */
    public static String message(String who, String reasons, SluiceSettings settings) {
        String fallback =
                settings.routing().fallbackToSpark()
                        ? "; shuffles registered from now on use Spark's own shuffle"
                        : ", or set "
                                + SluiceSettings.FALLBACK_POLICY
                                + "=spark to use Spark's own shuffle";
        String start = "no TaskManager is reachable " + who + ": " + reasons;
        if (reasons.contains(SluiceSettings.TOKEN_FILE)) {
            // TaskManagers refuse the credential; the reasons have the remedy.
            return start + (settings.routing().fallbackToSpark() ? fallback : "");
        }
        return String.format(
                "%s. Start TaskManagers (sluice taskmanager) or correct %s (now %s)%s",
                start, SluiceSettings.ENDPOINTS, settings.routing().endpoints(), fallback);
    }
}
