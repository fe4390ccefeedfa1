package io.sluice.client.auth;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;

/**
 * Names the key that the sender of a Hello proves (docs/reference/wire.md). None of it is secret.
 *
 * @param kind {@link #DRIVER} or {@link #TASK}
 * @param secretId 8 bytes that name the cluster secret
 * @param expiresAtSeconds expiry of the submit token in unsigned Unix time; 0 for never
 * @param tokenId 16 bytes that name the submit token
 * @param salt 16 bytes that distinguish the applications of a submit token
 * @param subject person or system that has the submit token
 */
public record Claim(
        int kind,
        byte[] secretId,
        long expiresAtSeconds,
        byte[] tokenId,
        byte[] salt,
        String subject) {
    static final int DRIVER = 2;
    static final int TASK = 3;

    static final int SECRET_ID_BYTES = 8;
    static final int TOKEN_ID_BYTES = 16;
    static final int SALT_BYTES = 16;
    static final int MAX_SUBJECT_BYTES = 512;

    /** Random text of this process: only it resumes the map outputs that it began. */
    private static final String PROCESS = HexFormat.of().formatHex(Credential.random(16));

    private static final int FIXED_BYTES =
            1 + SECRET_ID_BYTES + Long.BYTES + TOKEN_ID_BYTES + SALT_BYTES;

    /** Returns the bytes of a credential. */
    byte[] pack() {
        return pack(subject);
    }

    /**
     * Returns the bytes for a Hello. The proof covers the addresses, so an attacker who answers at
     * one of them cannot forward it to another TaskManager.
     *
     * @param dialed the addresses that were dialed, separated by blanks
     */
    public byte[] packFor(String dialed) {
        return pack(subject + "\0" + dialed + "\0" + PROCESS);
    }

    private byte[] pack(String ending) {
        byte[] text = ending.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(FIXED_BYTES + text.length)
                .put((byte) kind)
                .put(secretId)
                .putLong(expiresAtSeconds)
                .put(tokenId)
                .put(salt)
                .put(text)
                .array();
    }

    /**
     * Reads the bytes of a claim.
     *
     * @throws IllegalArgumentException if they are not the claim of a driver or task
     */
    static Claim unpack(ByteBuffer packed) {
        int subjectBytes = packed.remaining() - FIXED_BYTES;
        if (subjectBytes < 0 || subjectBytes > MAX_SUBJECT_BYTES) {
            throw new IllegalArgumentException("a claim of the wrong length");
        }
        int kind = packed.get();
        if (kind != DRIVER && kind != TASK) {
            throw new IllegalArgumentException("a claim of an unknown kind");
        }
        byte[] secretId = take(packed, SECRET_ID_BYTES);
        long expiresAtSeconds = packed.getLong();
        return new Claim(
                kind,
                secretId,
                expiresAtSeconds,
                take(packed, TOKEN_ID_BYTES),
                take(packed, SALT_BYTES),
                text(packed));
    }

    /** Returns the same claim for the tasks of the driver. */
    Claim forTasks() {
        return new Claim(TASK, secretId, expiresAtSeconds, tokenId, salt, subject);
    }

    static byte[] take(ByteBuffer from, int count) {
        byte[] bytes = new byte[count];
        from.get(bytes);
        return bytes;
    }

    /** Decodes the rest of {@code from}, which must be text. */
    static String text(ByteBuffer from) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(from).toString();
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException("a subject that is not text", e);
        }
    }

    // A record compares arrays by identity; claims are compared by content.
    @Override
    public boolean equals(Object other) {
        return other instanceof Claim claim && Arrays.equals(pack(), claim.pack());
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(pack());
    }

    @Override
    public String toString() {
        return (kind == DRIVER ? "driver" : "task")
                + " credential"
                + (subject.isEmpty() ? "" : " of " + subject);
    }
}
