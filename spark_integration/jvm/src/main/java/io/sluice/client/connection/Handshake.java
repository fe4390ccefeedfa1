package io.sluice.client.connection;

import io.sluice.client.auth.Credential;
import io.sluice.client.auth.Proofs;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;

/**
 * The handshake of the side that connects. With a credential, both sides prove that they have its
 * key; without one, the HelloAck follows the Hello.
 */
final class Handshake extends RoleHandler {
    /** Sends a message without waiting. */
    interface Sender {
        void send(Message message) throws IOException;
    }

    private final Sender sender;
    private final Runnable whenDone;

    /** Null without a credential. */
    private final Proofs proofs;

    private final Message.Hello hello;
    private Message.Challenge challenge;
    private Message.Proof proof;
    private Message.HelloAck ack;

    /**
     * @param plain the Hello without a claim
     * @param credential null for none
     * @param dialed the addresses that were dialed, separated by blanks
     * @param binding identifies the connection; may be empty
     * @param whenDone called after the HelloAck, before any later message
     */
    Handshake(
            Message.Hello plain,
            Credential credential,
            String dialed,
            byte[] binding,
            Sender sender,
            Runnable whenDone) {
        super("before the handshake");
        this.sender = sender;
        this.whenDone = whenDone;
        if (credential == null) {
            proofs = null;
            hello = plain;
        } else {
            hello = withClaim(plain, credential.claim().packFor(dialed));
            proofs = new Proofs(credential.key(), binding);
            proofs.add(hello);
        }
    }

    /**
     * Returns the credential for a role.
     *
     * @throws ClientException.Refused if the role needs the credential of a driver
     */
    static Credential credentialFor(int role, Credential credential)
            throws ClientException.Refused {
        if (credential == null || role != Message.ROLE_DRIVER) {
            return credential == null ? null : credential.forTasks();
        }
        if (!credential.isDriver()) {
            throw new ClientException.Refused(
                    ErrorCode.NOT_PERMITTED,
                    "a driver needs a submit token or the credential of a driver, and this is that"
                            + " of tasks");
        }
        return credential;
    }

    private static Message.Hello withClaim(Message.Hello plain, byte[] claim) {
        byte[] token = new byte[Frames.NONCE_BYTES + claim.length];
        System.arraycopy(Credential.random(Frames.NONCE_BYTES), 0, token, 0, Frames.NONCE_BYTES);
        System.arraycopy(claim, 0, token, Frames.NONCE_BYTES, claim.length);
        return new Message.Hello(
                plain.magic(),
                plain.versionMin(),
                plain.versionMax(),
                plain.role(),
                plain.applicationId(),
                token,
                plain.segmentSizeBytes(),
                plain.flowControl(),
                plain.features(),
                plain.name());
    }

    /** Returns the message that begins the handshake. */
    Message.Hello hello() {
        return hello;
    }

    /** Returns the answer; null before the end of the handshake. */
    Message.HelloAck ack() {
        return ack;
    }

    @Override
    public void onMessage(Message message) throws IOException {
        if (ack != null) {
            throw unexpected(message);
        }
        if (message instanceof Message.Challenge asked && challenge == null) {
            onChallenge(asked);
        } else if (message instanceof Message.Proof shown && challenge != null && proof == null) {
            proof = shown;
        } else if (message instanceof Message.HelloAck answer) {
            onAck(answer);
        } else {
            throw unexpected(message);
        }
    }

    private void onChallenge(Message.Challenge asked) throws IOException {
        if (proofs == null) {
            throw new ClientException.Refused(
                    ErrorCode.AUTHENTICATION_REQUIRED,
                    "the TaskManager asks for a proof, and there is no credential");
        }
        challenge = asked;
        proofs.add(asked);
        Message.Proof own = proofs.ofConnecting();
        proofs.add(own);
        sender.send(own);
    }

    private void onAck(Message.HelloAck answer) throws IOException {
        if (proofs != null) {
            if (proof == null) {
                throw new ClientException.Refused(
                        ErrorCode.AUTHENTICATION_FAILED,
                        "the TaskManager does not prove that it belongs to the cluster");
            }
            proofs.add(answer);
            if (!proofs.isOfAccepting(proof)) {
                throw new ClientException.Refused(
                        ErrorCode.AUTHENTICATION_FAILED,
                        "the TaskManager's proof that it belongs to the cluster is wrong");
            }
        }
        ack = answer;
        whenDone.run();
    }
}
