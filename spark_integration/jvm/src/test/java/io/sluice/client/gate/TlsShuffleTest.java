package io.sluice.client.gate;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.output.MapOutputWriterTest;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.TestCertificates;
import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsSettings;
import io.sluice.client.wire.ChunkPool;
import java.io.IOException;
import java.security.GeneralSecurityException;
import org.junit.jupiter.api.Nested;

/** Writes and reads map outputs over mutual TLS: all that holds without TLS holds with it. */
public class TlsShuffleTest {
    public static MockDaemon encryptedDaemon() throws IOException {
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
        public MockDaemon newDaemon() throws IOException {
            return encryptedDaemon();
        }

        @Override
        public ClientOptions options() {
            return encryptedOptions(chunks);
        }
    }

    @Nested
    class Reading extends InputGateTest {
        @Override
        public MockDaemon newDaemon() throws IOException {
            return encryptedDaemon();
        }

        @Override
        public ClientOptions options() {
            return encryptedOptions(chunks);
        }
    }
}
