package io.sluice.client.wire;

import java.io.IOException;
import java.net.ConnectException;

/**
 * Root of the failures between an executor and a TaskManager.
 *
 * <pre>
 * ClientException
 * ├── ConnectFailed   no connection to the endpoint could be made
 * ├── ConnectionLost  the connection ended while it was in use
 * ├── Deadline        nothing moved for longer than the deadline
 * ├── Interrupted     the thread was interrupted or the operation cancelled
 * ├── Protocol        the TaskManager broke a rule of the protocol
 * ├── Refused         settings or credentials of both sides do not go together
 * ├── Remote          the TaskManager answered with an ErrorResponse
 * └── Silent          the TaskManager did not answer a ping
 * </pre>
 *
 * <p>After any of them except a {@link Remote} that names a channel, the connection must be closed.
 */
public abstract class ClientException extends IOException {
    private static final String TOKEN_FILE = "spark.sluice.auth.tokenFile";

    private final ErrorCode code;

    private ClientException(ErrorCode code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    public ErrorCode code() {
        return code;
    }

    /** Returns whether the connection has ended or is about to, so that another may succeed. */
    public static boolean isLostConnection(IOException failure) {
        return failure instanceof ConnectionLost
                || failure instanceof Silent
                || (failure instanceof Remote remote
                        && (remote.code() == ErrorCode.SHUTTING_DOWN || remote.isIdleEnd()));
    }

    /** Returns whether the TaskManager has no room for map outputs of the application. */
    public static boolean isWithoutRoom(IOException failure) {
        return failure instanceof Remote remote
                && (remote.code() == ErrorCode.STORAGE_FULL
                        || remote.code() == ErrorCode.QUOTA_EXCEEDED);
    }

    /** No connection to the endpoint could be made. */
    public static final class ConnectFailed extends ClientException {
        private final String summary;

        public ConnectFailed(String endpoint, String why, Throwable cause) {
            super(
                    ErrorCode.CONNECT_FAILED,
                    "no connection to the TaskManager at " + endpoint + ": " + why + remedy(cause),
                    cause);
            this.summary = endpoint + ": " + why + aboutIdentity(cause);
        }

        /**
         * Returns the remedy; empty for a refusal, which has one, or an answer of a TaskManager.
         */
        private static String remedy(Throwable cause) {
            String about = aboutIdentity(cause);
            if (!about.isEmpty() || cause instanceof Refused || cause instanceof Remote) {
                return about;
            }
            return ". Start one there (sluice taskmanager) or correct spark.sluice.endpoints";
        }

        /** Returns the remedy for a failure of authentication; empty for another one. */
        private static String aboutIdentity(Throwable cause) {
            if (!(cause instanceof ClientException failure)) {
                return "";
            }
            return switch (failure.code) {
                case AUTHENTICATION_REQUIRED ->
                        String.format(
                                ". Set %s to the file of a submit token (sluice token create makes"
                                        + " one)",
                                TOKEN_FILE);
                case AUTHENTICATION_FAILED ->
                        String.format(
                                ". Check that %s holds a token of the cluster to which this"
                                        + " TaskManager belongs, and that it has"
                                        + " auth.cluster_secret_files",
                                TOKEN_FILE);
                case CREDENTIAL_EXPIRED ->
                        String.format(
                                ". Write a new token (sluice token create) into %s, or set the"
                                        + " clocks right",
                                TOKEN_FILE);
                case NOT_PERMITTED -> ". Correct " + TOKEN_FILE + " or the application's name";
                default -> "";
            };
        }

        /** Returns whether the host is alive, and nothing listens at the endpoint. */
        public boolean isRefused() {
            // The kernel's own time-out of a connect is a ConnectException, too.
            return getCause() instanceof ConnectException cause
                    && !String.valueOf(cause.getMessage()).contains("timed out");
        }

        /** Returns endpoint and reason for a list of failures, with remedies for authentication. */
        public String summary() {
            return summary;
        }
    }

    /** The connection ended while it was in use. */
    public static final class ConnectionLost extends ClientException {
        public ConnectionLost(String endpoint, String why, Throwable cause) {
            super(
                    ErrorCode.CONNECTION_LOST,
                    "the connection to the TaskManager at " + endpoint + " was lost: " + why,
                    cause);
        }
    }

    /** Nothing moved for longer than the deadline. */
    public static final class Deadline extends ClientException {
        public Deadline(String endpoint, String waitingFor, long milliseconds, String setting) {
            super(
                    ErrorCode.DEADLINE_EXCEEDED,
                    String.format(
                            "the TaskManager at %s did not answer: waited %d ms for %s (limit: %s)."
                                    + " Look at its log, or raise the setting",
                            endpoint, milliseconds, waitingFor, setting),
                    null);
        }
    }

    /** The TaskManager did not answer a ping: it hangs or is stopped, or its host is gone. */
    public static final class Silent extends ClientException {
        public Silent(String endpoint, String waitingFor, long milliseconds, String setting) {
            super(
                    ErrorCode.CONNECTION_LOST,
                    String.format(
                            "the TaskManager at %s was silent for %d ms during a wait for %s, and"
                                    + " answered no ping (limit: %s). Look at its log, or raise the"
                                    + " setting",
                            endpoint, milliseconds, waitingFor, setting),
                    null);
        }
    }

    /** The thread was interrupted or the operation cancelled. */
    public static final class Interrupted extends ClientException {
        public Interrupted(String what) {
            super(ErrorCode.CONNECTION_LOST, what, null);
        }
    }

    /** Settings or credentials of both sides do not go together. */
    public static final class Refused extends ClientException {
        public Refused(String why, Throwable cause) {
            super(ErrorCode.CONFIGURATION, why, cause);
        }

        /** The authentication of one side failed. */
        public Refused(ErrorCode code, String why) {
            super(code, why, null);
        }
    }

    /** The TaskManager broke a rule of the protocol. */
    public static final class Protocol extends ClientException {
        public Protocol(ErrorCode code, String what, Throwable cause) {
            super(code, what, cause);
        }
    }

    /** The TaskManager answered with an ErrorResponse. */
    public static final class Remote extends ClientException {
        private final transient Message.ErrorResponse response;

        public Remote(String endpoint, Message.ErrorResponse response) {
            super(
                    ErrorCode.of(response.code()),
                    String.format(
                            "the TaskManager at %s answered %s: %s%s%s",
                            endpoint,
                            ErrorCode.of(response.code()),
                            response.message(),
                            detail("value", response.value()),
                            detail("limit", response.limit())),
                    null);
            this.response = response;
        }

        private static String detail(String name, String value) {
            return value.isEmpty() ? "" : String.format(" (%s %s)", name, value);
        }

        /** Returns whether the TaskManager closed an idle connection. */
        boolean isIdleEnd() {
            return code() == ErrorCode.DEADLINE_EXCEEDED && response.channel() == null;
        }

        public Message.ErrorResponse response() {
            return response;
        }
    }
}
