package io.sluice.spark;

import java.io.IOException;

/**
 * No TaskManager answers, with the reason for each endpoint that was tried and what can be done.
 */
final class NoTaskManagerException extends IOException {
    private static final long serialVersionUID = 1L;

    private final String reasons;

    /**
     * @param who who found none
     * @param reasons one for each endpoint
     */
    NoTaskManagerException(String who, String reasons, SluiceSettings settings) {
        super(message(who, reasons, settings));
        this.reasons = reasons;
    }

    /** The reasons alone. */
    String reasons() {
        return reasons;
    }

    /** What a user is told, wherever it was found out. */
    static String message(String who, String reasons, SluiceSettings settings) {
        String fallback =
                settings.fallbackToSpark()
                        ? "; shuffles registered from now on use Spark's own shuffle"
                        : ", or set "
                                + SluiceSettings.FALLBACK_POLICY
                                + "=spark to use Spark's own shuffle";
        return "no TaskManager is reachable "
                + who
                + ": "
                + reasons
                + ". Start TaskManagers (sluice taskmanager) or correct "
                + SluiceSettings.ENDPOINTS
                + " (now "
                + settings.endpoints()
                + ")"
                + fallback;
    }
}
