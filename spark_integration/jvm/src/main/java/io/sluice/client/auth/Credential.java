package io.sluice.client.auth;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Base64;

/**
 * A claim and the key that proves it.
 *
 * <pre>
 * cluster secret ──▶ submit token ──▶ key of a driver ──▶ key of its tasks
 *                    (subject, expiry)  (one application)  (read and write, release nothing)
 * </pre>
 *
 * <p>A TaskManager computes the key from the claim and its cluster secret, so no key travels there.
 */
public record Credential(Claim claim, byte[] key) {
    private static final String SECRET_PREFIX = "sluice-secret-1-";
    private static final String TOKEN_PREFIX = "sluice-token-1-";
    private static final String DRIVER_PREFIX = "sluice-driver-1-";
    private static final String TASK_PREFIX = "sluice-task-1-";

    private static final int KEY_BYTES = 32;
    private static final int TOKEN_BYTES =
            KEY_BYTES + Claim.SECRET_ID_BYTES + Long.BYTES + Claim.TOKEN_ID_BYTES;

    private static final SecureRandom RANDOM = new SecureRandom();

    /**
     * Parses a credential. A submit token or a cluster secret yields a new credential of a driver.
     *
     * @throws IllegalArgumentException if the text is not a credential; the message does not have
     *     it
     */
    public static Credential parse(String text) {
        return parse(text, random(Claim.SALT_BYTES));
    }

    /** Parses a credential as above, with a given salt for a new one. */
    static Credential parse(String text, byte[] salt) {
        String stripped = text.strip();
        if (stripped.startsWith(SECRET_PREFIX)) {
            return ofSecret(decode(stripped, SECRET_PREFIX), salt);
        }
        if (stripped.startsWith(TOKEN_PREFIX)) {
            return ofToken(decode(stripped, TOKEN_PREFIX), salt);
        }
        if (stripped.startsWith(DRIVER_PREFIX)) {
            return ofPacked(decode(stripped, DRIVER_PREFIX), Claim.DRIVER);
        }
        if (stripped.startsWith(TASK_PREFIX)) {
            return ofPacked(decode(stripped, TASK_PREFIX), Claim.TASK);
        }
        throw new IllegalArgumentException(
                "this is not a credential of Sluice, which begins with sluice-token-,"
                        + " sluice-secret- or sluice-driver-: make one with sluice token create");
    }

    /** Makes the credential of the owner of a cluster secret. */
    private static Credential ofSecret(ByteBuffer secret, byte[] salt) {
        if (secret.remaining() != KEY_BYTES) {
            throw damaged(null);
        }
        byte[] key = Claim.take(secret, KEY_BYTES);
        byte[] tokenId = new byte[Claim.TOKEN_ID_BYTES];
        byte[] secretId = new byte[Claim.SECRET_ID_BYTES];
        System.arraycopy(derive(key, "sluice secret id"), 0, secretId, 0, secretId.length);
        byte[] tokenKey =
                derive(key, "sluice submit token\0", new byte[Long.BYTES + Claim.TOKEN_ID_BYTES]);
        return ofToken(tokenKey, new Claim(Claim.DRIVER, secretId, 0, tokenId, salt, ""));
    }

    private static Credential ofToken(ByteBuffer token, byte[] salt) {
        int subjectBytes = token.remaining() - TOKEN_BYTES;
        if (subjectBytes < 0 || subjectBytes > Claim.MAX_SUBJECT_BYTES) {
            throw damaged(null);
        }
        byte[] key = Claim.take(token, KEY_BYTES);
        byte[] secretId = Claim.take(token, Claim.SECRET_ID_BYTES);
        long expiresAtSeconds = token.getLong();
        byte[] tokenId = Claim.take(token, Claim.TOKEN_ID_BYTES);
        try {
            String subject = Claim.text(token);
            return ofToken(
                    key,
                    new Claim(Claim.DRIVER, secretId, expiresAtSeconds, tokenId, salt, subject));
        } catch (IllegalArgumentException e) {
            throw damaged(e);
        }
    }

    private static Credential ofToken(byte[] tokenKey, Claim claim) {
        return new Credential(claim, derive(tokenKey, "sluice driver\0", claim.salt()));
    }

    private static Credential ofPacked(ByteBuffer packed, int kind) {
        if (packed.remaining() < KEY_BYTES) {
            throw damaged(null);
        }
        byte[] key = Claim.take(packed, KEY_BYTES);
        Claim claim;
        try {
            claim = Claim.unpack(packed);
        } catch (IllegalArgumentException e) {
            throw damaged(e);
        }
        if (claim.kind() != kind) {
            throw damaged(null);
        }
        return new Credential(claim, key);
    }

    /** Returns whether this is the credential of a driver, which may release data. */
    public boolean isDriver() {
        return claim.kind() == Claim.DRIVER;
    }

    /** Returns the credential for tasks. */
    public Credential forTasks() {
        return isDriver() ? new Credential(claim.forTasks(), derive(key, "sluice task")) : this;
    }

    /** Returns the text that {@link #parse} reads. It holds the key. */
    public String toText() {
        byte[] packed = claim.pack();
        byte[] both = ByteBuffer.allocate(key.length + packed.length).put(key).put(packed).array();
        return (isDriver() ? DRIVER_PREFIX : TASK_PREFIX)
                + Base64.getUrlEncoder().withoutPadding().encodeToString(both);
    }

    public static byte[] random(int count) {
        byte[] bytes = new byte[count];
        RANDOM.nextBytes(bytes);
        return bytes;
    }

    private static byte[] derive(byte[] key, String purpose, byte[]... more) {
        byte[][] parts = new byte[more.length + 1][];
        parts[0] = purpose.getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(more, 0, parts, 1, more.length);
        return Proofs.hmac(key, parts);
    }

    private static ByteBuffer decode(String text, String prefix) {
        try {
            return ByteBuffer.wrap(Base64.getUrlDecoder().decode(text.substring(prefix.length())));
        } catch (IllegalArgumentException e) {
            // The cause would show a part of the text.
            throw damaged(null);
        }
    }

    private static IllegalArgumentException damaged(Exception cause) {
        return new IllegalArgumentException(
                "the text of a credential of Sluice is damaged: copy the whole text", cause);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Credential credential
                && claim.equals(credential.claim)
                && MessageDigest.isEqual(key, credential.key);
    }

    @Override
    public int hashCode() {
        return claim.hashCode();
    }

    /** Returns the claim alone: a key must not get into a log. */
    @Override
    public String toString() {
        return claim.toString();
    }
}
