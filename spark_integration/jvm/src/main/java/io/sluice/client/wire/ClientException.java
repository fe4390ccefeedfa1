package io.sluice.client.wire;

import java.io.IOException;

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
 * └── Remote          the TaskManager answered with an ErrorResponse
 * </pre>
 *
 * <p>After any of them except a {@link Remote} that names a channel, the connection must be closed.
 */
public abstract class ClientException extends IOException {
    private static final long serialVersionUID = 1L;

    private static final String TOKEN_FILE = "spark.sluice.auth.tokenFile";

    private final ErrorCode code;

    private ClientException(ErrorCode code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    public ErrorCode code() {
        return code;
    }

    /**
     * Returns whether the connection has ended, or the TaskManager is about to end it, so that
     * another connection may succeed.
     */
    public static boolean isLostConnection(IOException failure) {
        return failure instanceof ConnectionLost
                || (failure instanceof Remote remote
                        && (remote.code() == ErrorCode.SHUTTING_DOWN || remote.isIdleEnd()));
    }

    /**
     * Returns whether the TaskManager has no room for more map outputs of the application, so that
     * another one may.
     */
    public static boolean isWithoutRoom(IOException failure) {
        return failure instanceof Remote remote
                && (remote.code() == ErrorCode.STORAGE_FULL
                        || remote.code() == ErrorCode.QUOTA_EXCEEDED);
    }

    /** No connection to the endpoint could be made. */
    public static final class ConnectFailed extends ClientException {
        private static final long serialVersionUID = 1L;

        private final String summary;

        public ConnectFailed(String endpoint, String why, Throwable cause) {
            super(
                    ErrorCode.CONNECT_FAILED,
                    "no connection to the TaskManager at " + endpoint + ": " + why + remedy(cause),
                    cause);
            this.summary = endpoint + ": " + why + aboutIdentity(cause);
        }

        /**
         * Returns the remedy; empty for a refusal, whose reason has it, and for the answer of a
         * TaskManager, which runs.
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
                        ". Set "
                                + TOKEN_FILE
                                + " to the file of a submit token (sluice token create makes one)";
                case AUTHENTICATION_FAILED ->
                        ". Check that "
                                + TOKEN_FILE
                                + " holds a token of the cluster to which this TaskManager belongs,"
                                + " and that it has auth.cluster_secret_files";
                case CREDENTIAL_EXPIRED ->
                        ". Write a new token (sluice token create) into "
                                + TOKEN_FILE
                                + ", or set the clocks right";
                case NOT_PERMITTED -> ". Correct " + TOKEN_FILE + " or the application's name";
                default -> "";
            };
        }

        /**
         * Returns endpoint and reason, for a list of several failures. The remedy is in it only if
         * it is about authentication, since that of the other failures is the same for all.
         */
        public String summary() {
            return summary;
        }
    }

    /** The connection ended while it was in use. */
    public static final class ConnectionLost extends ClientException {
        private static final long serialVersionUID = 1L;

        public ConnectionLost(String endpoint, String why, Throwable cause) {
            super(
                    ErrorCode.CONNECTION_LOST,
                    "the connection to the TaskManager at " + endpoint + " was lost: " + why,
                    cause);
        }
    }

    /** Nothing moved for longer than the deadline. */
    public static final class Deadline extends ClientException {
        private static final long serialVersionUID = 1L;

        public Deadline(String endpoint, String waitingFor, long milliseconds, String setting) {
            super(
                    ErrorCode.DEADLINE_EXCEEDED,
                    "the TaskManager at "
                            + endpoint
                            + " did not answer: waited "
                            + milliseconds
                            + " ms for "
                            + waitingFor
                            + " (limit: "
                            + setting
                            + "). Look at its log, or raise the setting",
                    null);
        }
    }

    /** The thread was interrupted or the operation cancelled. */
    public static final class Interrupted extends ClientException {
        private static final long serialVersionUID = 1L;

        public Interrupted(String what) {
            super(ErrorCode.CONNECTION_LOST, what, null);
        }
    }

    /** Settings or credentials of both sides do not go together. */
    public static final class Refused extends ClientException {
        private static final long serialVersionUID = 1L;

        public Refused(String why, Throwable cause) {
            super(ErrorCode.CONFIGURATION, why, cause);
        }

        /** One side does not prove who it is, or with too little. */
        public Refused(ErrorCode code, String why) {
            super(code, why, null);
        }
    }

    /** The TaskManager broke a rule of the protocol. */
    public static final class Protocol extends ClientException {
        private static final long serialVersionUID = 1L;

        public Protocol(ErrorCode code, String what, Throwable cause) {
            super(code, what, cause);
        }
    }

    /** The TaskManager answered with an ErrorResponse. */
    public static final class Remote extends ClientException {
        private static final long serialVersionUID = 1L;

        private final transient Message.ErrorResponse response;

        public Remote(String endpoint, Message.ErrorResponse response) {
            super(
                    ErrorCode.of(response.code()),
                    "the TaskManager at "
                            + endpoint
                            + " answered "
                            + ErrorCode.of(response.code())
                            + ": "
                            + response.message()
                            + (response.value().isEmpty()
                                    ? ""
                                    : " (value " + response.value() + ")")
                            + (response.limit().isEmpty()
                                    ? ""
                                    : " (limit " + response.limit() + ")"),
                    null);
            this.response = response;
        }

        /** Returns whether the TaskManager closed a connection because nothing was asked on it. */
        boolean isIdleEnd() {
            return code() == ErrorCode.DEADLINE_EXCEEDED && response.channel() == null;
        }

        public Message.ErrorResponse response() {
            return response;
        }
    }
}
