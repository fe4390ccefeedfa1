package io.sluice.client;

/**
 * What every connection of a process has in common.
 *
 * @param applicationId the application whose shuffles these are
 * @param name for the TaskManager's log, at most 256 characters
 * @param connectTimeoutMillis connect and handshake, each
 * @param ioTimeoutMillis longest time without any progress while waiting
 * @param chunks memory for received buffers
 */
public record ClientOptions(
        String applicationId,
        String name,
        long connectTimeoutMillis,
        long ioTimeoutMillis,
        ChunkPool chunks) {}
