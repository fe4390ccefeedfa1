package io.sluice.client.tls;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.GatheringByteChannel;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLException;

/**
 * TLS on a non-blocking socket. It never waits, and buffers at most {@link #RECORDS} records in
 * each direction. {@link #read} decrypts all received records unless the caller's buffer is full.
 * {@link #flush} sends encrypted bytes that are left. Not thread safe.
 */
public final class TlsChannel implements GatheringByteChannel, ReadableByteChannel {
    /** Records for one system call. */
    private static final int RECORDS = 8;

    /** System calls in one write, so that the caller can read, too. */
    private static final int WRITE_ROUNDS = 8;

    private static final ByteBuffer[] NOTHING = {ByteBuffer.allocate(0)};

    private final SocketChannel channel;
    private final SSLEngine engine;
    private final boolean showsCertificate;
    private final ByteBuffer[] single = new ByteBuffer[1];

    /** Encrypted bytes between position and limit that were received. */
    private final ByteBuffer received;

    /** Encrypted bytes before the position that the socket has not taken yet. */
    private final ByteBuffer unsent;

    private final int recordBytes;
    private byte[] binding = new byte[0];
    private IOException failure;
    private boolean isEstablished;
    private boolean hasEnded;

    /**
     * @param channel a connected socket
     * @param showsCertificate whether the engine has a certificate to show
     */
    public TlsChannel(SocketChannel channel, SSLEngine engine, boolean showsCertificate) {
        this.channel = channel;
        this.engine = engine;
        this.showsCertificate = showsCertificate;
        recordBytes = engine.getSession().getPacketBufferSize();
        // On the heap: the JDK's AES-GCM copies direct buffers into arrays, which costs more than
        // the
        // copies of the socket.
        received = ByteBuffer.allocate(RECORDS * recordBytes).limit(0);
        unsent = ByteBuffer.allocate(RECORDS * recordBytes);
    }

    /**
     * Continues the handshake; returns whether it is done.
     *
     * @param scratch an empty buffer for a record; stays empty
     */
    public boolean handshake(ByteBuffer scratch) throws IOException {
        try {
            if (engine.getHandshakeStatus() == HandshakeStatus.NOT_HANDSHAKING && !isEstablished) {
                engine.beginHandshake();
            }
            while (true) {
                switch (engine.getHandshakeStatus()) {
                    case NEED_TASK -> runTasks();
                    case NEED_WRAP -> {
                        if (unsent.remaining() < recordBytes && !drain()) {
                            return false;
                        }
                        encrypt(NOTHING, 0, 1);
                    }
                    case NEED_UNWRAP, NEED_UNWRAP_AGAIN -> {
                        drain();
                        SSLEngineResult result = engine.unwrap(received, scratch);
                        if (result.getStatus() == SSLEngineResult.Status.BUFFER_UNDERFLOW) {
                            int n = receive();
                            if (n < 0) {
                                throw TlsRefusals.endOfHandshake();
                            }
                            if (n == 0) {
                                return false;
                            }
                        } else if (result.getStatus() == SSLEngineResult.Status.CLOSED) {
                            throw TlsRefusals.endOfHandshake();
                        }
                    }
                    default -> {
                        drain();
                        establish();
                        return true;
                    }
                }
            }
        } catch (SSLException e) {
            drainAlert();
            throw TlsRefusals.of(e, showsCertificate);
        }
    }

    private void establish() throws IOException {
        isEstablished = true;
        try {
            byte[] certificate = engine.getSession().getPeerCertificates()[0].getEncoded();
            binding = MessageDigest.getInstance("SHA-256").digest(certificate);
        } catch (GeneralSecurityException e) {
            throw new IOException("the certificate of the TaskManager cannot be hashed", e);
        }
    }

    /** Returns the SHA-256 of the server's certificate; empty before the handshake. */
    public byte[] binding() {
        return binding.clone();
    }

    /**
     * Decrypts available bytes; returns their number, or -1 after the orderly end.
     *
     * @param into a buffer with room for at least one record
     * @throws IOException if the connection ended without the end of TLS, or TLS failed
     */
    @Override
    public int read(ByteBuffer into) throws IOException {
        if (failure != null) {
            throw failure;
        }
        int before = into.position();
        try {
            while (true) {
                SSLEngineResult result = engine.unwrap(received, into);
                switch (result.getStatus()) {
                    case BUFFER_UNDERFLOW -> {
                        int n = receive();
                        if (n < 0) {
                            throw new IOException(
                                    "it was cut off: the end came without the end of TLS");
                        }
                        if (n == 0) {
                            return into.position() - before;
                        }
                    }
                    case BUFFER_OVERFLOW -> {
                        if (into.position() == before) {
                            throw new IllegalArgumentException(
                                    "no room for a record of TLS: " + into.remaining() + " bytes");
                        }
                        return into.position() - before;
                    }
                    case CLOSED -> {
                        hasEnded = true;
                        return into.position() > before ? into.position() - before : -1;
                    }
                    case OK -> answer();
                }
            }
        } catch (SSLException e) {
            drainAlert();
            failure = TlsRefusals.of(e, showsCertificate);
        } catch (IOException e) {
            failure = e;
        }
        // Bytes that came before the failure may have its reason.
        if (into.position() > before) {
            return into.position() - before;
        }
        throw failure;
    }

    /** Answers a key update, if there is room. */
    private void answer() throws IOException {
        if (engine.getHandshakeStatus() == HandshakeStatus.NEED_TASK) {
            runTasks();
        }
        if (engine.getHandshakeStatus() == HandshakeStatus.NEED_WRAP
                && unsent.remaining() >= recordBytes) {
            encrypt(NOTHING, 0, 1);
            drain();
        }
    }

    @Override
    public int write(ByteBuffer from) throws IOException {
        single[0] = from;
        try {
            return (int) write(single, 0, 1);
        } finally {
            single[0] = null;
        }
    }

    @Override
    public long write(ByteBuffer[] from) throws IOException {
        return write(from, 0, from.length);
    }

    /** Encrypts as much as socket and buffer take; returns the number of bytes. */
    @Override
    public long write(ByteBuffer[] from, int offset, int length) throws IOException {
        long taken = 0;
        try {
            for (int round = 0; round < WRITE_ROUNDS && drain(); round++) {
                int n;
                do {
                    n = has(from, offset, length) ? encrypt(from, offset, length) : 0;
                    taken += n;
                } while (n > 0 && unsent.remaining() >= recordBytes);
                if (unsent.position() == 0) {
                    break;
                }
            }
            return taken;
        } catch (SSLException e) {
            throw TlsRefusals.of(e, showsCertificate);
        }
    }

    private static boolean has(ByteBuffer[] from, int offset, int length) {
        for (int i = offset; i < offset + length; i++) {
            if (from[i].hasRemaining()) {
                return true;
            }
        }
        return false;
    }

    /** Encrypts one record; returns the number of bytes taken. */
    private int encrypt(ByteBuffer[] from, int offset, int length) throws IOException {
        SSLEngineResult result = engine.wrap(from, offset, length, unsent);
        if (result.getStatus() == SSLEngineResult.Status.BUFFER_OVERFLOW) {
            throw new SSLException("a record is larger than " + recordBytes + " bytes");
        }
        if (result.getStatus() == SSLEngineResult.Status.CLOSED && from != NOTHING) {
            throw new IOException("the TaskManager closed it");
        }
        if (result.getHandshakeStatus() == HandshakeStatus.NEED_TASK) {
            runTasks();
        }
        return result.bytesConsumed();
    }

    /** Sends buffered encrypted bytes; returns whether the socket took any. */
    public boolean flush() throws IOException {
        answer();
        int before = unsent.position();
        drain();
        return unsent.position() < before;
    }

    /** Returns whether received bytes are left to decrypt, perhaps a part of a record. */
    public boolean hasReceived() {
        return received.hasRemaining();
    }

    /** Returns whether encrypted bytes are buffered. */
    public boolean hasUnsent() {
        return unsent.position() > 0;
    }

    /**
     * Returns the operations of the socket to wait for.
     *
     * @param wantsToWrite whether the caller has bytes to write
     */
    public int interest(boolean wantsToWrite) {
        // While the engine waits for the other side, a wait to write would end at once.
        boolean takes = engine.getHandshakeStatus() != HandshakeStatus.NEED_UNWRAP;
        return SelectionKey.OP_READ
                | (hasUnsent() || (wantsToWrite && takes) ? SelectionKey.OP_WRITE : 0);
    }

    /** Writes encrypted bytes; returns whether all are written. */
    private boolean drain() throws IOException {
        if (unsent.position() > 0) {
            unsent.flip();
            try {
                channel.write(unsent);
            } finally {
                unsent.compact();
            }
        }
        return unsent.position() == 0;
    }

    /** Reads encrypted bytes; returns their number, or -1 at the end. */
    private int receive() throws IOException {
        received.compact();
        try {
            if (!received.hasRemaining()) {
                throw new SSLException("a record is larger than " + received.capacity() + " bytes");
            }
            return channel.read(received);
        } finally {
            received.flip();
        }
    }

    private void runTasks() {
        for (Runnable task = engine.getDelegatedTask();
                task != null;
                task = engine.getDelegatedTask()) {
            task.run();
        }
    }

    /** Sends an alert, if the socket takes it. */
    private void drainAlert() {
        try {
            if (!engine.isOutboundDone() && unsent.remaining() >= recordBytes) {
                engine.wrap(NOTHING, unsent);
            }
            drain();
        } catch (IOException e) {
            // The connection is closed anyway.
        }
    }

    @Override
    public boolean isOpen() {
        return channel.isOpen();
    }

    /** Sends the end of TLS, if the socket takes it at once, and closes the socket. */
    @Override
    public void close() throws IOException {
        if (isEstablished && !hasEnded && failure == null && channel.isOpen()) {
            engine.closeOutbound();
            drainAlert();
        }
        channel.close();
    }
}
