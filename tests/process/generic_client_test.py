"""A gRPC client without any code of ours: it learns the service from the server's reflection."""

import json
import os
import unittest

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from harness import ProcessTest, wait_for

# The messages of grpc.reflection.v1alpha that a client needs: (message, [(field, number, type)]).
_STRING, _BYTES = 'TYPE_STRING', 'TYPE_BYTES'
_REFLECTION = [
    ('Request', [('file_containing_symbol', 4, _STRING), ('list_services', 7, _STRING)]),
    ('Response', [('file_descriptor_response', 4, 'Files'),
                  ('list_services_response', 6, 'Services'), ('error_response', 7, 'Error')]),
    ('Files', [('file_descriptor_proto', 1, [_BYTES])]),
    ('Services', [('service', 1, ['Service'])]),
    ('Service', [('name', 1, _STRING)]),
    ('Error', [('error_code', 1, 'TYPE_INT32'), ('error_message', 2, _STRING)]),
]


def reflection_messages():
    file = descriptor_pb2.FileDescriptorProto(name='reflection', package='r', syntax='proto3')
    for name, fields in _REFLECTION:
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number, label='LABEL_OPTIONAL')
            if isinstance(kind, list):
                kind, = kind
                field.label = field.LABEL_REPEATED
            if kind.startswith('TYPE_'):
                field.type = field.Type.Value(kind)
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, '.r.' + kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return [factory.GetPrototype(pool.FindMessageTypeByName('r.' + name))
            for name in ('Request', 'Response')]


class GenericClient:

    def __init__(self, channel):
        self.channel = channel
        self.request, response = reflection_messages()
        self.reflect = channel.stream_stream(
            '/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo',
            request_serializer=self.request.SerializeToString,
            response_deserializer=response.FromString)

    def ask(self, **fields):
        return next(self.reflect(iter([self.request(**fields)]), timeout=60))

    def services(self):
        response = self.ask(list_services='*')
        return [service.name for service in response.list_services_response.service]

    def pool_of(self, symbol):
        """A descriptor pool with the file that defines `symbol` and what that imports."""
        response = self.ask(file_containing_symbol=symbol)
        files = {}
        for data in response.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
        pool = descriptor_pool.DescriptorPool()

        def add(name):
            file = files.pop(name, None)
            if file is not None:
                for dependency in file.dependency:
                    add(dependency)
                pool.Add(file)
        for name in list(files):
            add(name)
        return pool

    def call(self, service, method, **fields):
        descriptor = self.pool_of(service).FindServiceByName(service).methods_by_name[method]
        factory = message_factory.MessageFactory()
        request = factory.GetPrototype(descriptor.input_type)
        reply = factory.GetPrototype(descriptor.output_type)
        stub = self.channel.unary_unary('/%s/%s' % (service, method),
                                        request_serializer=request.SerializeToString,
                                        response_deserializer=reply.FromString)
        return json_format.MessageToDict(stub(request(**fields), timeout=60),
                                         preserving_proto_field_name=True)


class GenericClientTest(ProcessTest):

    def addresses(self, kind):
        with open(os.path.join(self.run_dir, 'servers.json')) as file:
            return json.load(file)[kind]

    def check_health(self, channel):
        health = channel.unary_unary('/grpc.health.v1.Health/Check')
        self.assertEqual(health(b'', timeout=60), b'\x08\x01')  # status: SERVING

    def test_server(self):
        self.start_long()
        with grpc.insecure_channel(self.addresses('servers')[0]) as channel:
            client = GenericClient(channel)
            services = client.services()
            self.assertIn('thermocline.ParameterServer', services)
            self.assertIn('grpc.health.v1.Health', services)
            self.check_health(channel)
            stats = client.call('thermocline.ParameterServer', 'GetStats')
            self.assertEqual(stats['job_id'], 'small')
            self.assertTrue(stats['configured'])
            names = [table['name'] for table in stats['tables']]
            self.assertIn('C1', names)
            self.assertIn('top.0.weight', names)
            self.assertGreater(int(stats['tables'][0]['rows']), 0)
            self.assertGreater(int(stats['pushes_accepted']), 0)
            with self.assertRaises(grpc.RpcError) as refused:
                client.call('thermocline.ParameterServer', 'GetDigest', job_id='other', generation=1)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            self.assertIn('other', refused.exception.details())

    def test_worker(self):
        self.start_long()
        wait_for(lambda: self.addresses('workers'), 'the address of the worker')
        with grpc.insecure_channel(self.addresses('workers')[0]) as channel:
            client = GenericClient(channel)
            self.assertIn('thermocline.Worker', client.services())
            self.check_health(channel)
            stats = client.call('thermocline.Worker', 'GetStats')
            self.assertEqual(stats['job_id'], 'small')


if __name__ == '__main__':
    unittest.main(verbosity=2)
