package io.sluice.client.tls;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.X509Certificate;
import java.util.Collections;
import java.util.List;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** Reads keys and certificates. Messages do not have passwords. */
final class TlsMaterial {
    @FunctionalInterface
    private interface Read<T> {
        T run() throws IOException, GeneralSecurityException;
    }

    private TlsMaterial() {}

    /**
     * Reads all files.
     *
     * @throws IllegalArgumentException if a file cannot be used
     */
    static SSLContext read(TlsSettings settings) {
        KeyManager[] keys = keyManagers(settings);
        TrustManager[] authorities = trustManagers(settings);
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(keys, authorities, null);
            return context;
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("this Java has no TLS", e);
        }
    }

    private static KeyManager[] keyManagers(TlsSettings settings) {
        if (settings.keyStore() != null) {
            TlsSettings.Store source = settings.keyStore();
            return reading(
                    TlsSettings.KEY_STORE,
                    source.path(),
                    () -> {
                        KeyStore store = load(source);
                        if (Collections.list(store.aliases()).stream()
                                .noneMatch(alias -> isKey(store, alias))) {
                            throw new IOException("it has no private key");
                        }
                        String password =
                                source.keyPassword() != null
                                        ? source.keyPassword()
                                        : source.password();
                        return keyManagers(store, characters(password));
                    });
        }
        if (settings.pemKey() == null) {
            return null;
        }
        TlsSettings.PemKey source = settings.pemKey();
        List<X509Certificate> chain =
                reading(
                        TlsSettings.CERT_CHAIN,
                        source.certChain(),
                        () -> Pem.certificates(source.certChain()));
        return reading(
                TlsSettings.PRIVATE_KEY,
                source.privateKey(),
                () -> {
                    PrivateKey key = Pem.privateKey(source.privateKey(), source.password());
                    if (!Pem.belongs(key, chain.get(0))) {
                        throw new IOException(
                                "it is not the key of the first certificate in "
                                        + source.certChain());
                    }
                    KeyStore store = empty();
                    char[] none = new char[0];
                    store.setKeyEntry("sluice", key, none, chain.toArray(new Certificate[0]));
                    return keyManagers(store, none);
                });
    }

    private static boolean isKey(KeyStore store, String alias) {
        try {
            return store.isKeyEntry(alias);
        } catch (GeneralSecurityException e) {
            return false;
        }
    }

    private static KeyManager[] keyManagers(KeyStore store, char[] password)
            throws GeneralSecurityException {
        KeyManagerFactory factory =
                KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, password);
        return factory.getKeyManagers();
    }

    private static TrustManager[] trustManagers(TlsSettings settings) {
        TlsSettings.Store source = settings.trustStore();
        boolean isStore = source != null;
        return reading(
                isStore ? TlsSettings.TRUST_STORE : TlsSettings.CA_FILE,
                isStore ? source.path() : settings.caFile(),
                () -> {
                    KeyStore store = isStore ? load(source) : empty();
                    if (!isStore) {
                        for (X509Certificate each : Pem.certificates(settings.caFile())) {
                            store.setCertificateEntry("ca" + store.size(), each);
                        }
                    }
                    boolean isEmpty = true;
                    for (String alias : Collections.list(store.aliases())) {
                        isEmpty = isEmpty && !store.isCertificateEntry(alias);
                    }
                    if (isEmpty) {
                        throw new IOException(
                                "it has no trusted certificate; add the authority's with keytool"
                                        + " -importcert, or set "
                                        + TlsSettings.CA_FILE);
                    }
                    TrustManagerFactory factory =
                            TrustManagerFactory.getInstance(
                                    TrustManagerFactory.getDefaultAlgorithm());
                    factory.init(store);
                    return factory.getTrustManagers();
                });
    }

    private static KeyStore load(TlsSettings.Store source)
            throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance(source.type());
        try (InputStream in = Files.newInputStream(source.path())) {
            store.load(in, characters(source.password()));
        }
        return store;
    }

    private static KeyStore empty() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static char[] characters(String password) {
        return password == null ? null : password.toCharArray();
    }

    private static <T> T reading(String setting, Path file, Read<T> read) {
        try {
            return read.run();
        } catch (NoSuchFileException e) {
            throw unusable(setting, file, "there is no such file on this host", e);
        } catch (AccessDeniedException e) {
            throw unusable(setting, file, "this process may not read it", e);
        } catch (IOException | GeneralSecurityException e) {
            String why = e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
            throw unusable(setting, file, why, e);
        }
    }

    private static IllegalArgumentException unusable(
            String setting, Path file, String why, Exception cause) {
        return new IllegalArgumentException(
                setting + " cannot be used: " + file + ": " + why, cause);
    }
}
