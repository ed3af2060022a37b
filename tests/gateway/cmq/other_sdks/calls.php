<?php
// Every call of CMQ's PHP SDK, unchanged; prints a JSON object of results by name. The folder of the SDK, the endpoint
// and the key are in the environment (see tests/gateway/test_other_sdks.py).

// Of the SDK: properties that PHP 8.2 wants to be declared.
error_reporting(E_ALL & ~E_DEPRECATED & ~E_WARNING & ~E_NOTICE);

require_once getenv('CMQ_PHP_SDK') . '/cmq/cmq_api.php';
foreach (['account', 'queue', 'topic', 'subscription', 'cmq_exception'] as $part) {
    require_once CMQAPI_ROOT_PATH . "/$part.php";
}

$results = [];

function refused(callable $call): int {
    try {
        $call();
    } catch (CMQServerException $error) {
        return $error->code;
    }
    return 0;
}

$account = new Account(getenv('CMQ_ENDPOINT'), getenv('CMQ_ID'), getenv('CMQ_KEY'));
$account->set_sign_method('sha256');
$account->get_client()->set_connection_timeout(60);
$account->get_client()->set_keep_alive(true);

// queues
$meta = new QueueMeta();
$meta->queueName = 'php';
$meta->pollingWaitSeconds = 3;
$meta->visibilityTimeout = 60;
$meta->maxMsgSize = 2048;
$meta->msgRetentionSeconds = 3600;
$meta->rewindSeconds = 600;
$queue = $account->get_queue('php');
$queue->create($meta);
$meta->visibilityTimeout = 30;
$queue->set_attributes($meta);
$read = $queue->get_attributes();
$results['queue'] = [$read->pollingWaitSeconds, $read->visibilityTimeout, $read->maxMsgSize, $read->rewindSeconds];
$results['list_queue'] = $account->list_queue('ph', 1, 0);
$results['create_again'] = refused(fn() => $queue->create($meta));

// messages; @ at the beginning, and text that is not ASCII
foreach (['one espresso', '@body', "ein K\u{e4}ffchen + 100 % = & ?"] as $body) {
    $sent = $queue->send_message(new Message($body));
    $received = $queue->receive_message(30);
    $queue->delete_message($received->receiptHandle);
    $results['messages'][] = [$received->msgBody === $body, $received->msgId === $sent->msgId, $received->dequeueCount];
}
$queue->set_encoding(true);
$queue->send_message(new Message("\x00\xff"));
$encoded = $queue->receive_message(30);
$results['encoded'] = $encoded->msgBody === "\x00\xff";
$queue->delete_message($encoded->receiptHandle);
$queue->set_encoding(false);
$sent = $queue->batch_send_message([new Message('a'), new Message('b')], 0);
$batch = $queue->batch_receive_message(16, 30);
$results['batch'] = array_map(fn($message) => $message->msgBody, $batch);
$handles = array_map(fn($message) => $message->receiptHandle, $batch);
$queue->batch_delete_message($handles);
$results['delete_again'] = refused(fn() => $queue->batch_delete_message($handles));
$results['empty'] = refused(fn() => $queue->receive_message(0));
$results['delayed'] = [$queue->send_message(new Message('later'), 600)->msgId !== '', $queue->get_attributes()->delayMsgNum];
$queue->rewindQueue($received->enqueueTime);
$results['rewound'] = count($queue->batch_receive_message(16, 0)) > 0;

// topics
$topic = $account->get_topic('php-news');
$topic_meta = new TopicMeta();
$topic_meta->maxMsgSize = 2048;
$topic->create($topic_meta);
$topic_meta->maxMsgSize = 4096;
$topic->set_attributes($topic_meta);
$results['topic'] = $topic->get_attributes()->maxMsgSize;
$results['list_topic'] = $account->list_topic('php', 1, 0);
$results['nobody'] = refused(fn() => $topic->publish_message('nobody listens'));

// subscriptions
$target = $account->get_queue('php-target');
$target->create(new QueueMeta());
$subscription = $account->get_subscription('php-news', 'php-sub');
$subscription_meta = new SubscriptionMeta();
$subscription_meta->Endpoint = 'php-target';
$subscription_meta->Protocol = 'queue';
$subscription_meta->NotifyStrategy = 'BACKOFF_RETRY';
$subscription_meta->NotifyContentFormat = 'SIMPLIFIED';
$subscription_meta->FilterTag = ['red', 'big'];
$subscription->create($subscription_meta);
$read = $subscription->get_attributes();
$results['subscription'] = [$read->Endpoint, $read->Protocol, $read->NotifyStrategy, $read->NotifyContentFormat, $read->FilterTag];
$subscription_meta->FilterTag = ['red'];
$subscription->set_attributes($subscription_meta);
$results['list_subscription'] = $topic->list_subscription('php', 10, 0)['totalCoult'];
$topic->publish_message('tagged', ['red']);
$topic->batch_publish_message(['first', 'second'], ['red']);
$results['unmatched'] = refused(fn() => $topic->publish_message('other', ['small']));
$subscription->clearFilterTags();
$results['cleared'] = $subscription->get_attributes()->FilterTag;
$results['delivered'] = array_map(fn($message) => $message->msgBody, $target->batch_receive_message(16, 30));
$results['topic_in_use'] = refused(fn() => $topic->delete());
$subscription->delete();
$topic->delete();

// The SDK spells the parameter of binding keys "bindindKey".
$routed = $account->get_topic('php-routed');
$topic_meta->filterType = 2;
$routed->create($topic_meta);
$by_key = $account->get_subscription('php-routed', 'php-key');
$key_meta = new SubscriptionMeta();
$key_meta->Endpoint = 'php-target';
$key_meta->Protocol = 'queue';
$key_meta->NotifyStrategy = 'BACKOFF_RETRY';
$key_meta->NotifyContentFormat = 'SIMPLIFIED';
$key_meta->bindindKey = ['1.*'];
$by_key->create($key_meta);
$routed->publish_message('routed', null, '1.2');
$results['routed'] = array_map(fn($message) => $message->msgBody, $target->batch_receive_message(16, 30));
$by_key->delete();
$routed->delete();

$target->delete();
$queue->delete();
$results['deleted'] = refused(fn() => $queue->get_attributes());
echo json_encode($results), "\n";
