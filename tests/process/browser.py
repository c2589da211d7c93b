"""A headless Chromium for the tests of pages, driven over its DevTools protocol.

Its two pipes take and give messages of JSON, each ended by a NUL; no network is used. deploy/setup.sh --tests installs
Debian's `chromium`.
"""

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

CHROMIUM = shutil.which('chromium')
DEADLINE_S = 120


class Browser:
    """One page at a time. `console`: what the console of the pages has said since the last open()."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix='chromium-', dir=os.environ.get('TEST_TMPDIR'))
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--no-first-run',
                 '--disable-extensions', '--disable-background-networking', '--disable-dev-shm-usage',
                 '--remote-debugging-pipe', '--user-data-dir=' + self._profile, 'about:blank']
        # Chromium takes descriptors 3 and 4.
        self._process = subprocess.Popen(
            ['/bin/bash', '-c', 'exec "$@" 3<&%d 4>&%d' % (to_read, to_write), 'bash', CHROMIUM, *flags],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._rest, self._ids, self._session = b'', 0, None
        self.console, self._loaded = [], False
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self._session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self.call(domain + '.enable')

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, **params):
        """The result of a method of the protocol."""
        self._ids += 1
        message = {'id': self._ids, 'method': method, 'params': params}
        if self._session:
            message['sessionId'] = self._session
        os.write(self._to, json.dumps(message).encode() + b'\0')
        while True:
            answer = self._read()
            if answer.get('id') == self._ids:
                if 'error' in answer:
                    raise RuntimeError('%s: %s' % (method, answer['error']))
                return answer['result']

    def open(self, url, width=1280, dark=False, script=True):
        """Loads a page, whole."""
        self.console, self._loaded = [], False
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 600)
        scheme = 'dark' if dark else 'light'
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': scheme}])
        self.call('Emulation.setScriptExecutionDisabled', value=not script)
        self.call('Page.navigate', url=url)
        while not self._loaded:
            self._read()
        if script:  # Two frames, so that what the page draws in the next one is drawn.
            self.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')

    def evaluate(self, expression):
        """The value of an expression of JavaScript on the page; a promise is awaited."""
        found = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in found:
            raise RuntimeError(json.dumps(found['exceptionDetails']))
        return found['result'].get('value')

    def visible_text(self):
        """All text of the page as it is laid out, also without JavaScript."""
        strings = self.call('DOMSnapshot.captureSnapshot', computedStyles=[])
        return '\n'.join(strings['strings'][i] for document in strings['documents']
                         for i in document['layout']['text'] if i >= 0)

    def press(self, *keys):
        """Presses and releases keys by their names ("ArrowLeft", "Home")."""
        for key in keys:
            for kind in ('keyDown', 'keyUp'):
                self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key)

    def screenshot(self, path=None):
        """The page down to its end as PNG; written to `path`, where there is one."""
        size = self.call('Page.getLayoutMetrics')['cssContentSize']
        clip = {'x': 0, 'y': 0, 'width': size['width'], 'height': min(size['height'], 6000), 'scale': 1}
        shot = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=True, clip=clip)
        png = base64.b64decode(shot['data'])
        if path:
            with open(path, 'wb') as file:
                file.write(png)
        return png

    def _read(self):
        deadline = time.monotonic() + DEADLINE_S
        while b'\0' not in self._rest:
            if not select.select([self._from], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError('Chromium did not answer for %d s' % DEADLINE_S)
            more = os.read(self._from, 1 << 20)
            if not more:
                raise RuntimeError('Chromium ended')
            self._rest += more
        text, self._rest = self._rest.split(b'\0', 1)
        message = json.loads(text)
        method, params = message.get('method'), message.get('params', {})
        if method == 'Page.loadEventFired':
            self._loaded = True
        elif method == 'Runtime.consoleAPICalled':
            self.console.append(' '.join(str(a.get('value')) for a in params['args']))
        elif method == 'Runtime.exceptionThrown':
            self.console.append(json.dumps(params['exceptionDetails']))
        elif method == 'Log.entryAdded':
            self.console.append(params['entry']['text'])
        return message


def bytes_of(png):
    """How many different bytes the rows of a PNG have, which differ from their neighbours: few on an even surface."""
    data, at = b'', 8
    while at < len(png):
        size, kind = struct.unpack('>I4s', png[at:at + 8])
        if kind == b'IDAT':
            data += png[at + 8:at + 8 + size]
        at += size + 12
    return len(set(zlib.decompress(data)))
