/** Credentials of drivers and tasks, and the proofs that they are valid. */
package io.sluice.client.auth;
