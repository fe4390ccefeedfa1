package io.sluice.client.tls;

import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import java.security.cert.CertificateException;
import java.security.cert.CertificateExpiredException;
import java.util.Locale;
import javax.net.ssl.SSLException;

/** Explains why TLS with a TaskManager failed, each reason with its remedy. */
public final class TlsRefusals {
    private static final String ALERT = "Received fatal alert: ";

    private TlsRefusals() {}

    /**
     * Explains a failure of the JDK's engine.
     *
     * @param showsCertificate whether this side has a certificate
     */
    static ClientException.Refused of(SSLException failure, boolean showsCertificate) {
        return new ClientException.Refused(why(failure, showsCertificate), failure);
    }

    private static String why(SSLException failure, boolean showsCertificate) {
        String text = failure.getMessage() == null ? "no reason given" : failure.getMessage();
        if (text.contains("nrecognized SSL message")) {
            return String.format(
                    "it does not speak TLS: set transport.tls_enabled there, or %s=false here",
                    TlsSettings.ENABLED);
        }
        if (text.startsWith(ALERT)) {
            return ofAlert(text.substring(ALERT.length()), showsCertificate);
        }
        CertificateException wrong = certificateFailure(failure);
        if (wrong != null) {
            return ofCertificate(wrong);
        }
        return String.format(
                "TLS failed (%s): check %s here, transport.tls_minimum_version there, and proxies"
                        + " between them",
                text, TlsSettings.PROTOCOL);
    }

    private static String ofAlert(String alert, boolean showsCertificate) {
        String what = alert.toLowerCase(Locale.ROOT);
        boolean isOfVersion = what.equals("protocol_version") || what.contains("security");
        if (what.equals("certificate_required") || (!showsCertificate && !isOfVersion)) {
            return String.format(
                    "it requires a client certificate%s (%s): set %s and %s, or %s, to a"
                            + " certificate of an authority in its transport.tls_ca_file",
                    showsCertificate ? ", and does not know the authority of this side's" : "",
                    what,
                    TlsSettings.CERT_CHAIN,
                    TlsSettings.PRIVATE_KEY,
                    TlsSettings.KEY_STORE);
        }
        if (isOfVersion) {
            return String.format(
                    "it refuses the version of TLS (%s): check %s here and"
                            + " transport.tls_minimum_version there",
                    what, TlsSettings.PROTOCOL);
        }
        return String.format(
                "it refuses the certificate of this side (%s): renew it or sign it by an authority"
                        + " in its transport.tls_ca_file (%s or %s), and look at its log",
                what, TlsSettings.CERT_CHAIN, TlsSettings.KEY_STORE);
    }

    private static CertificateException certificateFailure(Throwable failure) {
        CertificateException found = null;
        for (Throwable each = failure; each != null; each = each.getCause()) {
            found = each instanceof CertificateException wrong ? wrong : found;
        }
        return found;
    }

    private static String ofCertificate(CertificateException wrong) {
        String text = wrong.getMessage();
        if (wrong instanceof CertificateExpiredException) {
            return "its certificate has expired (" + text + "): renew it there";
        }
        // Only these of the JDK's messages are about the name.
        if (text.startsWith("No subject alternative") || text.startsWith("No name matching")) {
            return String.format(
                    "its certificate is for another host (%s): name this host in the certificate's"
                            + " subjectAltName, correct spark.sluice.endpoints, or set %s=false",
                    text.replaceAll("\\.$", ""), TlsSettings.CHECK_HOST_NAME);
        }
        return String.format(
                "its certificate is not trusted (%s): add its authority to %s or %s",
                text, TlsSettings.CA_FILE, TlsSettings.TRUST_STORE);
    }

    /** Explains the end of a connection before its TLS handshake was done. */
    static ClientException.Refused endOfHandshake() {
        return new ClientException.Refused(
                String.format(
                        "it closed the connection during the TLS handshake: check in its log"
                                + " whether it speaks TLS, and set transport.tls_enabled there or"
                                + " %s=false here",
                        TlsSettings.ENABLED),
                null);
    }

    /** Explains that the server requires TLS. */
    public static ClientException.Refused needsTls(Throwable cause) {
        return new ClientException.Refused(
                String.format(
                        "this port speaks TLS only: set %s=true, with %s or %s, or use the Unix"
                                + " socket",
                        TlsSettings.ENABLED, TlsSettings.CA_FILE, TlsSettings.TRUST_STORE),
                cause);
    }

    /** Explains that a TaskManager sends data to others unencrypted. */
    public static ClientException.Refused unencryptedPeers() {
        return new ClientException.Refused(
                "it does not speak TLS with other TaskManagers, and spark.network.crypto.enabled or"
                        + " spark.ssl.rpc.enabled asks for encryption: set transport.tls_enabled"
                        + " there",
                null);
    }

    /** Returns the refusal in a failure, or the failure itself. */
    public static Exception in(Exception failure) {
        if (failure.getCause() instanceof ClientException.Refused refused) {
            return refused;
        }
        if (failure instanceof ClientException.Remote remote
                && remote.code() == ErrorCode.CONFIGURATION
                && remote.response().message().contains("speaks TLS only")) {
            return needsTls(remote);
        }
        return failure;
    }
}
