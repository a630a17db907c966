"""Subjects the model can explain: a definition, then details in order."""

# subject: (definition, details)
ENGINE = {
    "a radix tree": (
        "A radix tree keeps every prompt the engine has seen as a path of tokens.",
        ["Prompts that begin with the same words share the same branch.",
         "When a new prompt arrives, the engine walks down the tree and finds the longest part it already knows.",
         "That part does not have to be computed again, so the first word comes sooner.",
         "When memory runs short, the leaves that were not used for the longest time are cut first.",
         "It is a little like a prompter who remembers how every play begins."]),
    "a page": (
        "A page is a small block of memory that holds the keys and values of a few tokens.",
        ["The engine cuts its cache into many pages of the same size.",
         "A dialogue takes pages one by one as it grows, and gives them back when it ends.",
         "Two dialogues with the same beginning can share the pages of that beginning.",
         "Because every page has the same size, no memory is lost to gaps."]),
    "a batch": (
        "A batch is a group of requests that the engine computes together.",
        ["One pass through the weights then serves many readers at once.",
         "A new request may join the batch at any step, and a finished one leaves at once.",
         "This is called continuous batching.",
         "It keeps the machine busy and the answers quick."]),
    "continuous batching": (
        "Continuous batching means that requests may join and leave a batch at every step.",
        ["Nobody has to wait until a long answer of somebody else is complete.",
         "When one request ends, its place goes to the next one at once.",
         "So the machine is always busy, and the answers come sooner."]),
    "prefix caching": (
        "Prefix caching means that the beginning of a prompt is computed only once.",
        ["If a later prompt begins in the same way, the engine takes the old pages.",
         "The radix tree tells the engine which pages fit.",
         "It helps most when many dialogues share one long system prompt."]),
    "a token": (
        "A token is a small piece of text: a word, a part of a word, or a sign.",
        ["The tokenizer cuts the text into tokens and gives each of them a number.",
         "The model reads those numbers and says which number is likely to come next.",
         "Then the numbers are turned back into text.",
         "This answer, too, was written one token at a time."]),
    "an actor": (
        "An actor is a part of the program that owns its state and talks only by messages.",
        ["It reads one message, does its work, and then reads the next.",
         "Nobody else can touch its state, so no lock is needed.",
         "If an actor fails, its supervisor can start it again.",
         "In a theatre, of course, an actor is a person who plays a part on the stage."]),
    "the scheduler": (
        "The scheduler decides which requests are computed in the next step.",
        ["It looks at the free pages and at the requests that wait.",
         "Long prompts are cut into parts, so that short answers do not have to wait for them.",
         "When there is too little memory, it puts a request aside and takes it up again later.",
         "A good scheduler is fair and keeps the machine busy."]),
    "the cache": (
        "The cache keeps the keys and values of the tokens that were already read.",
        ["Without it, the model would have to read the whole dialogue again for every new word.",
         "It is stored in pages, and the radix tree knows which page belongs to which text.",
         "The longer a dialogue becomes, the more room it takes."]),
    "streaming": (
        "Streaming means that each piece of the answer is sent as soon as it is ready.",
        ["You can start to read while the model is still writing.",
         "If you close the connection, the engine stops the work and frees the memory.",
         "A short delay before the first word matters more to a reader than the total time."]),
    "a tokenizer": (
        "A tokenizer cuts text into tokens and joins tokens back into text.",
        ["It learned from a corpus which letters often stand together.",
         "Common words become one token, and rare words become several.",
         "Every byte has a token of its own, so no text is impossible to write."]),
    "a chat template": (
        "A chat template turns a list of messages into one text that the model can continue.",
        ["It marks where each message starts and ends, and who wrote it.",
         "The last mark invites the assistant to speak.",
         "A model that was trained with one template should be used with the same one."]),
    "temperature": (
        "Temperature says how freely the next token is chosen.",
        ["At zero the most likely token always wins, so the same prompt gives the same answer.",
         "A higher temperature gives more surprise, and more mistakes as well.",
         "For facts a low value is better, and for stories a higher one is more fun."]),
    "attention": (
        "Attention lets the model look back at the earlier tokens and choose which of them matter now.",
        ["Each token asks a question, and every earlier token offers a key and a value.",
         "Where the question and the key agree, the value counts more.",
         "Several heads do this at the same time, and each looks for something else."]),
    "an embedding": (
        "An embedding is a list of numbers that stands for a token.",
        ["Tokens with a similar use have similar numbers.",
         "The model starts from the embeddings and changes them layer by layer.",
         "At the end it compares the result with all embeddings to choose the next token."]),
    "a transformer": (
        "A transformer is a kind of neural network that reads a row of tokens.",
        ["It is built from layers, and each layer has attention and a small network.",
         "The attention gathers what matters, and the small network thinks about it.",
         "I am a transformer myself, only a very small one."]),
    "an inference engine": (
        "An inference engine loads a trained model and computes its answers.",
        ["It reads the prompt, keeps the cache, and chooses one token after the other.",
         "A good engine serves many people at once and wastes neither time nor memory.",
         "Souffleur is such an engine, and I am the small model that comes with it."]),
    "a language model": (
        "A language model is a program that learned from text which word is likely to come next.",
        ["It writes by choosing one token, adding it to the text, and asking itself again.",
         "A large model has read a whole library, but I have read only a thin booklet.",
         "What it says sounds sure, so it is wise to check it."]),
    "a stop token": (
        "A stop token is a special sign that tells the engine that the answer is complete.",
        ["The model writes it when it has nothing more to say.",
         "The engine sees it, closes the stream and frees the pages.",
         "Without it, a model would talk for ever."]),
    "a seed": (
        "A seed is a number that starts the random choices.",
        ["With the same seed, the same prompt and the same settings, you get the same answer.",
         "That is useful when you want to repeat a test.",
         "With another seed the answer may take another road."]),
}

THEATRE = {
    "a souffleur": (
        "A souffleur is the prompter of a theatre, who whispers the next words to the actors.",
        ["The word is French and means a person who breathes or blows.",
         "The prompter sits in a small box at the front of the stage, hidden from the audience.",
         "There the whole play lies open, line by line.",
         "When an actor forgets the text, a soft whisper helps, and the play goes on.",
         "The engine has the same task: it says the next word at the right moment."]),
    "a stage": (
        "A stage is the place in a theatre where the actors play.",
        ["It is often a little higher than the seats, so that everyone can see.",
         "Behind it are the ropes, the lights and the painted walls.",
         "At its sides are the wings, where the actors wait for their turn."]),
    "a curtain": (
        "A curtain is the large cloth that hides the stage before the play begins.",
        ["It is often red and very heavy.",
         "When it rises, the audience becomes quiet.",
         "When it falls for the last time, people clap their hands."]),
    "a rehearsal": (
        "A rehearsal is a meeting where the actors practise the play.",
        ["At first they read the text from the page.",
         "Later they know it by heart and learn where to stand and when to turn.",
         "The last one is the dress rehearsal, with costumes and lights.",
         "People say that a bad dress rehearsal promises a good first night."]),
    "a director": (
        "A director leads the work on a play and decides how it is told.",
        ["The director chooses the actors and talks with them about their parts.",
         "Light, sound and costumes are planned together with the designers.",
         "On the first night the director can only sit and watch."]),
    "an audience": (
        "An audience is all the people who came to watch the play.",
        ["They sit in the dark and look at the light.",
         "They laugh, they hold their breath, and at the end they clap.",
         "Every evening it is a different one, so no two plays are the same."]),
    "a prop": (
        "A prop is any small object that the actors use on the stage.",
        ["It may be a cup, a letter, a sword or a lamp.",
         "Before the play every prop lies on a table, each in its own place.",
         "A lost letter can stop a whole scene."]),
    "a costume": (
        "A costume is what an actor wears to become somebody else.",
        ["It shows at one glance if the person is rich or poor, young or old.",
         "It must be strong, because it is worn every evening.",
         "Sometimes an actor has less than a minute to change."]),
    "a playwright": (
        "A playwright is a person who writes plays.",
        ["A play is written to be spoken, so every line must sound right.",
         "The playwright gives the words, and the actors give them a voice.",
         "Shakespeare is the most famous playwright of all."]),
    "an understudy": (
        "An understudy is an actor who learns the part of another one.",
        ["If the first actor becomes ill, the understudy goes on the stage.",
         "It is hard work, and often nobody sees it.",
         "But some great actors had their first success in that way."]),
    "a comedy": (
        "A comedy is a play that makes people laugh and ends well.",
        ["Somebody hides, somebody is mistaken for somebody else, and a door opens at the wrong time.",
         "At the end the truth comes out and there is often a wedding."]),
    "a tragedy": (
        "A tragedy is a sad play about a great person who falls.",
        ["The hero makes one mistake and cannot escape from it.",
         "The audience feels pity and fear, and goes home in silence.",
         "Hamlet is a famous tragedy."]),
    "stage fright": (
        "Stage fright is the fear that comes before you stand in front of people.",
        ["The heart beats fast, the hands are cold, and the mouth is dry.",
         "Almost every actor knows it, even after many years.",
         "It often goes away with the first line."]),
    "a spotlight": (
        "A spotlight is a strong lamp that lights one small part of the stage.",
        ["It shows the audience where to look.",
         "An actor learns to feel the warm light and to stay in it."]),
}

ENGINE_NAME = (
    "Souffleur is an engine that runs language models.",
    ["It is written in Rust, and its parts are actors that talk by messages.",
     "It keeps the cache in pages and finds shared beginnings with a radix tree.",
     "Requests from many people are computed together in one batch.",
     "Its name comes from the theatre: a souffleur whispers the next words to the actors.",
     "I am the small model that comes with it, so that you can try it at once."],
)

# subject: tips
ADVICE = {
    "sleep better": [
        "Go to bed at the same time every evening.", "Keep your room dark and cool.",
        "Put the screen away an hour before.", "Read a few pages of a quiet book.",
        "Do not drink coffee in the afternoon."],
    "learn a language": [
        "Practise a little every day.", "Learn whole sentences and not only words.",
        "Listen to songs and stories.", "Speak early and do not fear mistakes.",
        "Write down three new words each evening."],
    "learn a text by heart": [
        "Cut the text into small parts.", "Read each part aloud, again and again.",
        "Walk while you speak.", "Ask a friend to be your prompter.",
        "Sleep over it, and repeat it in the morning."],
    "overcome stage fright": [
        "Breathe slowly and deeply.", "Know your first line very well.",
        "Look for one friendly face in the audience.", "Move a little before you go on.",
        "Remember that the audience wants you to do well."],
    "give a good speech": [
        "Start with one clear idea.", "Use short sentences.", "Speak more slowly than you think.",
        "Make a pause after each important point.", "End before people are tired."],
    "focus on my work": [
        "Choose one task and write it down.", "Put your phone in another room.",
        "Work for half an hour and then rest for a moment.", "Keep your table clear.",
        "Begin with the most difficult part."],
    "make new friends": [
        "Smile and say hello first.", "Ask questions and listen to the answers.",
        "Join a club or a choir.", "Be patient, because trust takes time.",
        "Remember names and small stories."],
    "write a story": [
        "Start with a person who wants something.", "Put something in the way.",
        "Use simple words and clear pictures.", "Read it aloud to hear the rhythm.",
        "Cut every sentence that does not help."],
    "cook a good soup": [
        "Begin with an onion and a little butter.", "Add carrots, potatoes and fresh water.",
        "Let it cook slowly for half an hour.", "Add salt at the end and taste it.",
        "Serve it hot, with a piece of bread."],
    "keep a plant alive": [
        "Put it in a bright place.", "Give it water when the soil is dry.",
        "Do not give it too much.", "Turn it a little every week.",
        "Take away the old leaves."],
    "stay healthy": [
        "Walk for a while every day.", "Eat fruit and vegetables.", "Drink enough water.",
        "Sleep as long as your body asks for.", "Talk with people you like."],
    "save money": [
        "Write down what you spend.", "Wait a day before you buy something large.",
        "Cook at home more often.", "Put a small sum aside each month.",
        "Repair things before you replace them."],
    "tidy my room": [
        "Start with the bed, because it is the largest thing.", "Put all clothes in one pile.",
        "Give every object a place.", "Throw away what is broken.",
        "Open the window and let fresh air in."],
    "calm down": [
        "Take five slow breaths.", "Drink a glass of water.", "Go for a short walk.",
        "Write down what worries you.", "Talk to somebody you trust."],
    "be more creative": [
        "Carry a small notebook with you.", "Take another way home.",
        "Mix two ideas that do not belong together.", "Make many bad drafts.",
        "Rest, because good ideas come in quiet hours."],
    "prepare for an exam": [
        "Make a plan and start early.", "Study in small parts.", "Explain the subject to a friend.",
        "Solve old questions.", "Sleep well the night before."],
}
