package io.sluice.client.tls;

import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.util.List;
import java.util.function.Function;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * TLS for the TCP connections of a process. Changed files are read again for the next connection;
 * unusable ones are ignored. Thread safe.
 */
public final class Tls {
    private static final Logger LOG = LoggerFactory.getLogger(Tls.class);

    /** No TLS. */
    public static final Tls OFF = new Tls(null, false, Endpoint::host);

    /** The version of a file; size -1 if the file is missing. */
    private record Stamp(FileTime modified, long size) {}

    private final TlsSettings settings;
    private final boolean needsEncryptedPeers;
    private final Function<Endpoint, String> hostOf;
    private SSLContext context;
    private List<Stamp> stamps;

    private Tls(
            TlsSettings settings, boolean needsEncryptedPeers, Function<Endpoint, String> hostOf) {
        this.settings = settings;
        this.needsEncryptedPeers = needsEncryptedPeers;
        this.hostOf = hostOf;
        if (settings != null) {
            stamps = stamps(settings);
            context = TlsMaterial.read(settings);
        }
    }

    /**
     * Reads the files.
     *
     * @param settings null for TCP connections without TLS
     * @param needsEncryptedPeers whether TaskManagers must use TLS between each other
     * @throws IllegalArgumentException if a file cannot be used
     */
    public static Tls of(TlsSettings settings, boolean needsEncryptedPeers) {
        return new Tls(settings, needsEncryptedPeers, Endpoint::host);
    }

    /**
     * Returns the same TLS settings for endpoints that may be resolved from names.
     *
     * @param names returns the host that the certificate of an endpoint must name
     */
    public Tls withNames(Function<Endpoint, String> names) {
        return isOn() ? new Tls(settings, needsEncryptedPeers, names) : this;
    }

    /** Returns whether TCP connections are encrypted. */
    public boolean isOn() {
        return settings != null;
    }

    public boolean needsEncryptedPeers() {
        return needsEncryptedPeers;
    }

    /** Returns whether this side has a certificate to show. */
    public boolean hasCertificate() {
        return settings != null && settings.hasCertificate();
    }

    /** Returns an engine for a new connection. */
    public SSLEngine engine(Endpoint endpoint) {
        SSLEngine engine = context().createSSLEngine(hostOf.apply(endpoint), endpoint.port());
        engine.setUseClientMode(true);
        SSLParameters parameters = engine.getSSLParameters();
        parameters.setProtocols(settings.protocols());
        if (settings.checkHostName()) {
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
        }
        engine.setSSLParameters(parameters);
        return engine;
    }

    private synchronized SSLContext context() {
        // Taken before the files are read: a change meanwhile is noticed the next time.
        List<Stamp> now = stamps(settings);
        if (!now.equals(stamps)) {
            stamps = now;
            try {
                context = TlsMaterial.read(settings);
                LOG.info("New connections to TaskManagers use the changed TLS files");
            } catch (IllegalArgumentException e) {
                LOG.warn(
                        "The changed TLS files are not used, the former ones stay in use: {}",
                        e.getMessage());
            }
        }
        return context;
    }

    private static List<Stamp> stamps(TlsSettings settings) {
        return settings.files().stream().map(Tls::stamp).toList();
    }

    private static Stamp stamp(Path file) {
        try {
            BasicFileAttributes found = Files.readAttributes(file, BasicFileAttributes.class);
            return new Stamp(found.lastModifiedTime(), found.size());
        } catch (IOException e) {
            return new Stamp(FileTime.fromMillis(0), -1);
        }
    }
}
