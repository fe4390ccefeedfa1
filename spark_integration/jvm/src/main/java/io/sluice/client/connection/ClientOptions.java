package io.sluice.client.connection;

import io.sluice.client.auth.Credential;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;

/**
 * The options that all connections of a process share.
 *
 * @param applicationId the application that owns the shuffles
 * @param name name of the client in the TaskManager's log, at most 256 characters
 * @param connectTimeoutMillis deadline of the connect, and of the handshake
 * @param ioTimeoutMillis longest wait without any progress
 * @param silenceTimeoutMillis longest silence of a TaskManager that is pinged; no limit if it is
 *     not below {@code ioTimeoutMillis}
 * @param chunks memory for received buffers
 * @param tls encryption of TCP connections; null is {@link Tls#OFF}
 * @param credential null for connections without authentication
 * @param remoteCopies whether map outputs get a copy in the remote tier of the TaskManagers
 */
public record ClientOptions(
        String applicationId,
        String name,
        long connectTimeoutMillis,
        long ioTimeoutMillis,
        long silenceTimeoutMillis,
        ChunkPool chunks,
        Tls tls,
        Credential credential,
        boolean remoteCopies) {

    public ClientOptions {
        tls = tls == null ? Tls.OFF : tls;
    }

    /** Makes options without copies in a remote tier. */
    public ClientOptions(
            String applicationId,
            String name,
            long connectTimeoutMillis,
            long ioTimeoutMillis,
            long silenceTimeoutMillis,
            ChunkPool chunks,
            Tls tls,
            Credential credential) {
        this(
                applicationId,
                name,
                connectTimeoutMillis,
                ioTimeoutMillis,
                silenceTimeoutMillis,
                chunks,
                tls,
                credential,
                false);
    }

    /** Makes options without a limit of silence. */
    public ClientOptions(
            String applicationId,
            String name,
            long connectTimeoutMillis,
            long ioTimeoutMillis,
            ChunkPool chunks,
            Tls tls,
            Credential credential) {
        this(
                applicationId,
                name,
                connectTimeoutMillis,
                ioTimeoutMillis,
                ioTimeoutMillis,
                chunks,
                tls,
                credential);
    }

    /** Makes options for connections without TLS and credential. */
    public ClientOptions(
            String applicationId,
            String name,
            long connectTimeoutMillis,
            long ioTimeoutMillis,
            ChunkPool chunks) {
        this(applicationId, name, connectTimeoutMillis, ioTimeoutMillis, chunks, Tls.OFF, null);
    }
}
