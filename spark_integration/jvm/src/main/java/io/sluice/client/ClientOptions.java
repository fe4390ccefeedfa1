package io.sluice.client;

/**
 * Holds the options that all connections of a process share.
 *
 * @param applicationId the application that owns the shuffles
 * @param name name of the client in the TaskManager's log, at most 256 characters
 * @param connectTimeoutMillis deadline of the connect, and of the handshake after it
 * @param ioTimeoutMillis longest wait without any progress
 * @param chunks memory for received buffers
 * @param credential what connections prove to TaskManagers, and have them prove; null for nothing
 */
public record ClientOptions(
        String applicationId,
        String name,
        long connectTimeoutMillis,
        long ioTimeoutMillis,
        ChunkPool chunks,
        Credential credential) {}
