package io.sluice.client;

import java.io.IOException;
import java.security.GeneralSecurityException;
import org.junit.jupiter.api.Nested;

/** Writes and reads map outputs over mutual TLS: all that holds without TLS holds with it. */
class TlsShuffleTest {
    static MockDaemon encryptedDaemon() throws IOException {
        try {
            return new MockDaemon(TestCertificates.get().server(TestCertificates.SERVER));
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException(e);
        }
    }

    static ClientOptions encryptedOptions(ChunkPool chunks) {
        try {
            TlsSettings settings =
                    TestCertificates.get().settings(TestCertificates.CLIENT, TestCertificates.CA);
            return new ClientOptions(
                    "app", "test", 5_000, 2_000, chunks, Tls.of(settings, false), null);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    @Nested
    class Writing extends MapOutputWriterTest {
        @Override
        MockDaemon newDaemon() throws IOException {
            return encryptedDaemon();
        }

        @Override
        ClientOptions options() {
            return encryptedOptions(chunks);
        }
    }

    @Nested
    class Reading extends InputGateTest {
        @Override
        MockDaemon newDaemon() throws IOException {
            return encryptedDaemon();
        }

        @Override
        ClientOptions options() {
            return encryptedOptions(chunks);
        }
    }
}
