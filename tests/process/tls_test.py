"""A whole job over mutual TLS, with certificates made here."""

import os
import subprocess
import unittest

import grpc

from harness import DEADLINE_S, THERMOCLINE, ProcessTest, of_role, refusal


def openssl(folder, *arguments):
    subprocess.run(['openssl', *arguments], cwd=folder, check=True, capture_output=True,
                   timeout=DEADLINE_S)


def make_certificates(folder, ca):
    """CA.pem and CA-peer.pem with CA-peer.key, signed by it for localhost and 127.0.0.1."""
    curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
    openssl(folder, 'req', '-x509', *curve, '-days', '2', '-subj', '/CN=' + ca,
            '-keyout', ca + '.key', '-out', ca + '.pem')
    openssl(folder, 'req', *curve, '-subj', '/CN=peer', '-keyout', ca + '-peer.key',
            '-out', ca + '-peer.csr')
    with open(os.path.join(folder, 'extensions'), 'w') as file:
        file.write('subjectAltName=DNS:localhost,IP:127.0.0.1\n')
    openssl(folder, 'x509', '-req', '-in', ca + '-peer.csr', '-CA', ca + '.pem',
            '-CAkey', ca + '.key', '-CAcreateserial', '-days', '2', '-extfile', 'extensions',
            '-out', ca + '-peer.pem')


class TlsTest(ProcessTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_certificates(cls.folder, 'ours')
        make_certificates(cls.folder, 'theirs')

    def tls(self, ca):
        path = os.path.join(self.folder, ca)
        return {'certificate': path + '-peer.pem', 'private_key': path + '-peer.key',
                'ca': path + '.pem'}

    def job_flags(self, ca):
        return ['--set=cluster.tls.%s=%s' % item for item in self.tls(ca).items()]

    def stats(self, *flags):
        return subprocess.run([THERMOCLINE, 'stats', *flags], capture_output=True, text=True,
                              timeout=DEADLINE_S)

    def test_same_model_as_in_plain_text(self):
        secret = self.train('--servers=2', *self.job_flags('ours'))
        plain = self.train(run_dir=self.run_dir + '-plain')
        self.assertEqual(secret['model_digest'], plain['model_digest'])

    def test_strangers_are_refused(self):
        self.start_long(*self.job_flags('ours'))
        with open(os.path.join(self.run_dir, 'server-0.port')) as file:
            address = file.read().strip()
        self.assertEqual(self.stats('--run-dir', self.run_dir).returncode, 0)
        flags = ['--tls-%s=%s' % (name.replace('_', '-'), path)
                 for name, path in self.tls('ours').items()]
        self.assertEqual(self.stats(address, *flags).returncode, 0)
        self.assertEqual(self.stats(address).returncode, 1)  # in plain text
        stranger = [flag.replace('ours-peer', 'theirs-peer') for flag in flags]
        self.assertEqual(self.stats(address, *stranger).returncode, 1)
        with open(self.tls('ours')['ca'], 'rb') as ca:
            without_certificate = grpc.ssl_channel_credentials(ca.read())
        with grpc.secure_channel(address, without_certificate) as channel:
            health = channel.unary_unary('/grpc.health.v1.Health/Check')
            with self.assertRaises(grpc.RpcError) as refused:
                health(b'', timeout=DEADLINE_S)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def certificates(self, name, *flags):
        folder = os.path.join(self.folder, name)
        self.thermocline('certificates', '--job=small', '--out', folder, *flags)
        return folder

    def test_roles(self):
        folder = self.certificates('roles')
        flags = ['--set=cluster.tls.directory=' + folder]
        secret = self.train('--servers=2', *flags)
        plain = self.train(run_dir=self.run_dir + '-plain')
        self.assertEqual(secret['model_digest'], plain['model_digest'])

        self.run_dir += '-long'
        self.start_long(*flags)
        with open(os.path.join(self.run_dir, 'server-0.port')) as file:
            address = file.read().strip()
        self.assertEqual(self.stats('--run-dir', self.run_dir).returncode, 0)
        self.assertEqual(self.stats(address, *of_role(folder, 'reader')).returncode, 0)
        denied = grpc.StatusCode.PERMISSION_DENIED
        for method, role in (('Push', 'worker'), ('Configure', 'controller'),
                             ('Checkpoint', 'controller'), ('GetDigest', 'controller')):
            code, text = refusal(address, folder, 'reader', method)
            self.assertEqual(code, denied)
            self.assertIn('role reader may not call %s; it is for %s' % (method, role), text)
        # A role that may call gets an error of the method itself.
        code, _ = refusal(address, folder, 'controller', 'Configure')
        self.assertEqual(code, grpc.StatusCode.FAILED_PRECONDITION)
        # Roles are for servers and clients alike.
        refused = self.stats(address, *of_role(folder, 'node'))
        self.assertEqual(refused.returncode, 1)
        self.assertIn('role node may not call GetStats', refused.stdout + refused.stderr)

    def test_automatic(self):
        secret = self.train('--set=cluster.tls.automatic=true', '--set=checkpoint={}')
        plain = self.train(run_dir=self.run_dir + '-plain')
        self.assertEqual(secret['model_digest'], plain['model_digest'])
        folder = os.path.join(self.run_dir, 'certificates')
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        self.assertIn('server.key', os.listdir(folder))
        self.assertNotIn('ca.key', os.listdir(folder))

    def test_certificates_of_another_job_or_role(self):
        folder = self.certificates('small')
        code, _, err = self.finish(self.start('--set=cluster.tls.directory=' + folder,
                                              '--set=name=large'))
        self.assertEqual(code, 2)
        self.assertIn("controller.pem' is for the controller of job 'small', not for the "
                      "controller of job 'large'", err)
        one = ['--set=cluster.tls.%s=%s/%s' % (field, folder, file) for field, file in
               (('certificate', 'worker.pem'), ('private_key', 'worker.key'), ('ca', 'ca.pem'))]
        code, _, err = self.finish(self.start(*one))
        self.assertEqual(code, 2)
        self.assertIn('cluster.tls.directory names a folder', err)

    def test_files_that_do_not_fit(self):
        folder = self.certificates('fits')
        with open(os.path.join(folder, 'server.key'), 'w') as key, \
                open(os.path.join(folder, 'worker.key')) as other:
            key.write(other.read())
        code, _, err = self.finish(self.start('--set=cluster.tls.directory=' + folder))
        self.assertEqual(code, 2)
        self.assertIn("server.key' is not the key of the certificate", err)
        again = subprocess.run([THERMOCLINE, 'certificates', '--job=small', '--out', folder],
                               capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(again.returncode, 2)
        self.assertIn('is there already', again.stderr)

    def test_missing_files_are_named(self):
        code, _, err = self.finish(self.start(*self.job_flags('nobody')))
        self.assertEqual(code, 2)
        self.assertIn('nobody-peer.pem', err)


if __name__ == '__main__':
    unittest.main(verbosity=2)
