/** TLS on non-blocking sockets, and the keys and certificates for it. */
package io.sluice.client.tls;
