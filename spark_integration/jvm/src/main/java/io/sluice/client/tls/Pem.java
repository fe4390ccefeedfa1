package io.sluice.client.tls;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.NoSuchAlgorithmException;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Cipher;
import javax.crypto.EncryptedPrivateKeyInfo;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;

/** Reads certificates and private keys in PEM form. */
final class Pem {
    private static final List<String> KEY_ALGORITHMS = List.of("EC", "RSA", "EdDSA", "RSASSA-PSS");

    private static final Pattern BLOCK =
            Pattern.compile("-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \\1-----");

    private record Block(String label, byte[] der) {}

    private Pem() {}

    /** Reads the certificates of a file, at least one. */
    static List<X509Certificate> certificates(Path file)
            throws IOException, GeneralSecurityException {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        List<X509Certificate> found = new ArrayList<>();
        for (Block block : blocks(file)) {
            if (block.label().equals("CERTIFICATE")) {
                ByteArrayInputStream der = new ByteArrayInputStream(block.der());
                found.add((X509Certificate) factory.generateCertificate(der));
            }
        }
        if (found.isEmpty()) {
            throw new IOException("it has no certificate in PEM form");
        }
        return found;
    }

    /**
     * Reads a private key in PKCS8.
     *
     * @param password of an encrypted key, or null
     */
    static PrivateKey privateKey(Path file, String password)
            throws IOException, GeneralSecurityException {
        for (Block block : blocks(file)) {
            switch (block.label()) {
                case "PRIVATE KEY" -> {
                    return decoded(new PKCS8EncodedKeySpec(block.der()));
                }
                case "ENCRYPTED PRIVATE KEY" -> {
                    return decoded(decrypted(block.der(), password));
                }
                case "RSA PRIVATE KEY", "EC PRIVATE KEY" ->
                        throw new IOException(
                                "the key is not in PKCS8; convert it with openssl pkcs8 -topk8"
                                        + " -nocrypt -in KEY -out NEW");
                default -> {
                    // The file may have curve parameters or certificates, too.
                }
            }
        }
        throw new IOException("it has no private key in PEM form");
    }

    private static List<Block> blocks(Path file) throws IOException {
        // Latin-1 reads any byte: text between the blocks may have any encoding.
        Matcher matcher = BLOCK.matcher(Files.readString(file, StandardCharsets.ISO_8859_1));
        List<Block> blocks = new ArrayList<>();
        while (matcher.find()) {
            String text = matcher.group(2);
            // An encrypted key of OpenSSL's old form has headers, which are not Base64.
            byte[] der = text.contains(":") ? new byte[0] : Base64.getMimeDecoder().decode(text);
            blocks.add(new Block(matcher.group(1), der));
        }
        return blocks;
    }

    private static PKCS8EncodedKeySpec decrypted(byte[] der, String password)
            throws IOException, GeneralSecurityException {
        if (password == null) {
            throw new IOException("the key is encrypted; set " + TlsSettings.PRIVATE_KEY_PASSWORD);
        }
        EncryptedPrivateKeyInfo info;
        try {
            info = new EncryptedPrivateKeyInfo(der);
        } catch (IOException e) {
            throw unreadable(e);
        }
        // For PBES2, only the parameters name the algorithm.
        String algorithm =
                info.getAlgName().equals("PBES2")
                                || info.getAlgName().equals("1.2.840.113549.1.5.13")
                        ? info.getAlgParameters().toString()
                        : info.getAlgName();
        PBEKeySpec spec = new PBEKeySpec(password.toCharArray());
        try {
            Cipher cipher = Cipher.getInstance(algorithm);
            cipher.init(
                    Cipher.DECRYPT_MODE,
                    SecretKeyFactory.getInstance(algorithm).generateSecret(spec),
                    info.getAlgParameters());
            return info.getKeySpec(cipher);
        } catch (NoSuchAlgorithmException e) {
            throw unreadable(e);
        } catch (GeneralSecurityException e) {
            throw new IOException(
                    "the key cannot be decrypted; correct " + TlsSettings.PRIVATE_KEY_PASSWORD, e);
        } finally {
            spec.clearPassword();
        }
    }

    private static IOException unreadable(Exception cause) {
        return new IOException(
                "the key is encrypted in a way that this Java cannot read ("
                        + cause.getMessage()
                        + "); convert it with openssl pkcs8 -topk8 -v2 aes-256-cbc -in KEY -out"
                        + " NEW",
                cause);
    }

    private static PrivateKey decoded(PKCS8EncodedKeySpec spec)
            throws IOException, GeneralSecurityException {
        for (String algorithm : KEY_ALGORITHMS) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(spec);
            } catch (InvalidKeySpecException e) {
                // The key has another algorithm.
            }
        }
        throw new IOException("the key is not of " + String.join(", ", KEY_ALGORITHMS));
    }

    /** Returns whether a private key belongs to a certificate. */
    static boolean belongs(PrivateKey key, X509Certificate certificate)
            throws GeneralSecurityException {
        PublicKey other = certificate.getPublicKey();
        String algorithm =
                switch (key.getAlgorithm()) {
                    case "RSA" -> "SHA256withRSA";
                    case "EC" -> "SHA256withECDSA";
                    case "EdDSA" -> "EdDSA";
                    default -> null;
                };
        if (algorithm == null) {
            return key.getAlgorithm().equals(other.getAlgorithm());
        }
        if (!other.getAlgorithm().equals(key.getAlgorithm())) {
            return false;
        }
        byte[] text = {1};
        Signature signer = Signature.getInstance(algorithm);
        signer.initSign(key);
        signer.update(text);
        byte[] signature = signer.sign();
        signer.initVerify(other);
        signer.update(text);
        return signer.verify(signature);
    }
}
