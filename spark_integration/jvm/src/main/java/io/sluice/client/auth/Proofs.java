package io.sluice.client.auth;

import io.sluice.client.wire.Message;
import io.sluice.client.wire.MessageEncoder;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Computes the proofs of a handshake, which cover its messages so far and the connection
 * (docs/reference/wire.md).
 */
public final class Proofs {
    private static final String ALGORITHM = "HmacSHA256";
    private static final byte[] CONNECTS = ascii("sluice proof of the side that connects");
    private static final byte[] ACCEPTS = ascii("sluice proof of the side that accepts");

    private final byte[] key;
    private final byte[] binding;
    private final MessageEncoder encoder = new MessageEncoder();
    private final List<byte[]> messages = new ArrayList<>();

    /**
     * @param key the key of the claim
     * @param binding identifies the connection; may be empty
     */
    public Proofs(byte[] key, byte[] binding) {
        this.key = key;
        this.binding = binding;
    }

    /** Adds a message that was sent or received. */
    public void add(Message message) {
        messages.add(encoder.encode(message));
    }

    /** Returns the proof of the side that connects. */
    public Message.Proof ofConnecting() {
        return new Message.Proof(proof(CONNECTS));
    }

    /** Returns the proof of the side that accepts. */
    public Message.Proof ofAccepting() {
        return new Message.Proof(proof(ACCEPTS));
    }

    /** Checks, in constant time, the proof of the side that accepts. */
    public boolean isOfAccepting(Message.Proof answer) {
        return MessageDigest.isEqual(answer.proof(), proof(ACCEPTS));
    }

    private byte[] proof(byte[] label) {
        List<byte[]> parts = new ArrayList<>();
        addPart(parts, label);
        messages.forEach(control -> addPart(parts, control));
        addPart(parts, binding);
        return hmac(key, parts.toArray(new byte[0][]));
    }

    /** Adds a part after its length, so that parts cannot be divided differently. */
    private static void addPart(List<byte[]> parts, byte[] part) {
        parts.add(ByteBuffer.allocate(Integer.BYTES).putInt(part.length).array());
        parts.add(part);
    }

    static byte[] hmac(byte[] key, byte[]... parts) {
        try {
            Mac mac = Mac.getInstance(ALGORITHM);
            mac.init(new SecretKeySpec(key, ALGORITHM));
            for (byte[] part : parts) {
                mac.update(part);
            }
            return mac.doFinal();
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("every JVM has " + ALGORITHM, e);
        }
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }
}
